-- Appends to sessions whose epoch and tail match, and answers with these. Each array before `owners` has an element per
-- session, the others one per record; `writer` is the node that appends.
--
-- A function keeps its plan in every connection of a server, although no statement is prepared under a name. The plan is
-- made once, perhaps while the tables are empty: the settings make it one that serves large tables.
CREATE FUNCTION meerkat.append(
    ids uuid[], epochs bigint[], afters bigint[], tails bigint[], sizes bigint[], summaries text[], idles boolean[],
    owners uuid[], seqs bigint[], times bigint[], lines bytea[], writer text
) RETURNS SETOF uuid LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
BEGIN
    RETURN QUERY
    WITH batch AS (
        SELECT * FROM unnest(ids, epochs, afters, tails, sizes, summaries, idles)
            AS b (id, epoch, after, tail, bytes, summary, is_idle)
    ), taken AS (
        UPDATE meerkat.sessions s SET
            tail = b.tail,
            written_epoch = b.epoch,
            bytes = s.bytes + b.bytes,
            -- Whatever took the name away was late, as the epoch says.
            node = writer,
            is_idle = b.is_idle,
            summary = coalesce(b.summary, s.summary),
            summary_seq = CASE WHEN b.summary IS NULL THEN s.summary_seq ELSE b.tail END,
            changed = CASE WHEN b.summary IS NULL THEN s.changed
                ELSE greatest(s.changed + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) END
        FROM batch b WHERE s.id = b.id AND s.epoch = b.epoch AND s.tail = b.after
        RETURNING s.id
    ), kept AS (
        INSERT INTO meerkat.events (session, seq, time, line)
        SELECT e.session, e.seq, e.time, e.line FROM unnest(owners, seqs, times, lines) AS e (session, seq, time, line)
        JOIN taken t ON t.id = e.session
    )
    SELECT t.id FROM taken t;
END
$$;
