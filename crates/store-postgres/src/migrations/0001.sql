-- Nodes that use this database, each alive until a time of the database's clock.
CREATE TABLE meerkat.nodes (
    id text PRIMARY KEY,
    -- Counts the starts of the node: a former process does not keep its successor's leases.
    incarnation bigint NOT NULL,
    alive_until timestamptz NOT NULL
);

-- Sessions. One with the tail 0 does not exist: it was leased and never made, or was deleted. Its row stays, so that an
-- epoch is never used again.
CREATE TABLE meerkat.sessions (
    id uuid PRIMARY KEY,
    -- Counts the leases; an append under another epoch changes nothing.
    epoch bigint NOT NULL DEFAULT 0,
    -- Node that holds the lease.
    node text,
    -- True if nothing runs or waits: any node may take the lease.
    is_idle boolean NOT NULL DEFAULT false,
    tail bigint NOT NULL DEFAULT 0,
    -- Epoch of the last append. With the tail it tells a node whose answer was lost if its append happened.
    written_epoch bigint NOT NULL DEFAULT 0,
    -- Grows when records are dropped.
    version bigint NOT NULL DEFAULT 0,
    -- Bytes of the lines.
    bytes bigint NOT NULL DEFAULT 0,
    -- Place in lists, the row they show, and its last record. What was removed keeps a place for a while, so that other
    -- nodes hear of it.
    changed bigint,
    summary text,
    summary_seq bigint
);
CREATE INDEX sessions_node ON meerkat.sessions (node) WHERE node IS NOT NULL;
CREATE INDEX sessions_changed ON meerkat.sessions (changed DESC, id DESC) WHERE changed IS NOT NULL;

-- Records, as the lines that every surface sends.
CREATE TABLE meerkat.events (
    session uuid NOT NULL,
    seq bigint NOT NULL,
    -- Milliseconds of the record's time.
    time bigint NOT NULL,
    line bytea NOT NULL,
    PRIMARY KEY (session, seq)
);

-- Bodies too large for a line. Sessions that were forked share the parts of a body.
CREATE TABLE meerkat.blobs (
    session uuid NOT NULL,
    name text NOT NULL,
    length bigint NOT NULL,
    body uuid NOT NULL,
    -- Milliseconds of the time of an upload, which is deleted unless a prompt uses it; 0 if it is a blob.
    uploaded bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (session, name, uploaded)
);
CREATE INDEX blobs_uploaded ON meerkat.blobs (uploaded) WHERE uploaded > 0;
CREATE INDEX blobs_body ON meerkat.blobs (body);
CREATE TABLE meerkat.blob_parts (
    body uuid NOT NULL,
    part bigint NOT NULL,
    made timestamptz NOT NULL DEFAULT now(),
    data bytea NOT NULL,
    PRIMARY KEY (body, part)
);
ALTER TABLE meerkat.blob_parts ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX blob_parts_made ON meerkat.blob_parts (made);

-- Folded sessions, never read past their journal.
CREATE TABLE meerkat.snapshots (
    session uuid PRIMARY KEY,
    data bytea NOT NULL
);

-- Idempotency keys of a session, or of the whole store (a scope of zeros).
CREATE TABLE meerkat.keys (
    scope uuid NOT NULL,
    key text NOT NULL,
    session uuid NOT NULL,
    time bigint NOT NULL,
    entry text NOT NULL,
    stored timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, key)
);

-- Readers, and how far each has come.
CREATE TABLE meerkat.readers (
    name text PRIMARY KEY,
    created bigint NOT NULL
);
CREATE TABLE meerkat.checkpoints (
    session uuid NOT NULL,
    reader text NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (session, reader)
);
-- Nothing reads it any more; it stays for nodes of earlier versions.
CREATE TABLE meerkat.relied (
    session uuid NOT NULL,
    reader text NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (session, reader)
);

-- Requests for sessions that another node works on.
CREATE TABLE meerkat.inbox (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    -- Node that has the session.
    node text NOT NULL,
    session uuid NOT NULL,
    operation text NOT NULL,
    params text NOT NULL,
    made timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Incarnation of the node that runs it.
    taken bigint,
    answer text
);
CREATE INDEX inbox_open ON meerkat.inbox (node, made) WHERE answer IS NULL;
