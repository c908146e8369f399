-- What memory is to forget at every node. One node after the other adds to it, so that a place appears only behind all
-- that have appeared.
CREATE TABLE meerkat.forgotten (
    place bigint PRIMARY KEY,
    request text NOT NULL
);
