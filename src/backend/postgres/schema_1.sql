CREATE TABLE {schema}.statepact_meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL
);
INSERT INTO {schema}.statepact_meta (version) VALUES (0);

-- The mark of each resource that ever had a token, and its last lease. Times
-- are milliseconds since 1970; an expiry of 0 says that it was released. Rows
-- are never deleted: a mark outlives everything.
CREATE TABLE {schema}.statepact_leases (
    resource text COLLATE "C" PRIMARY KEY,
    mark bigint NOT NULL CHECK (mark > 0),
    owner text COLLATE "C",
    token bigint CHECK (token > 0),
    expires_at bigint,
    ttl bigint CHECK (ttl > 0),
    CHECK (num_nulls(owner, token, expires_at, ttl) IN (0, 4)),
    -- Makes the mark a part of a key, so that a lock on the key keeps it from
    -- being raised, and nothing else from being written.
    UNIQUE (resource, mark)
) WITH (fillfactor = 70);

-- A deleted resource keeps its row, with its count of versions.
CREATE TABLE {schema}.statepact_resources (
    resource text COLLATE "C" PRIMARY KEY,
    present boolean NOT NULL,
    fenced boolean NOT NULL,
    version bigint NOT NULL CHECK (version > 0)
) WITH (fillfactor = 70);

-- json, not jsonb: a value keeps its text.
CREATE TABLE {schema}.statepact_fields (
    resource text COLLATE "C",
    field text COLLATE "C",
    version bigint NOT NULL CHECK (version > 0),
    value json NOT NULL,
    PRIMARY KEY (resource, field)
);

CREATE TABLE {schema}.statepact_log (
    sequence bigint PRIMARY KEY,
    at bigint NOT NULL,
    event json NOT NULL
);

CREATE TABLE {schema}.statepact_receipts (
    id text COLLATE "C" PRIMARY KEY,
    fingerprint bigint NOT NULL,
    sequence bigint NOT NULL,
    versions json NOT NULL
);
CREATE INDEX ON {schema}.statepact_receipts (sequence);

-- The newest sequence, the oldest that is kept, and the latest time seen. Its
-- row is the last that a transaction locks, so that sequences have no gaps and
-- follow the order of the commits.
CREATE TABLE {schema}.statepact_counter (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    newest bigint NOT NULL,
    oldest bigint NOT NULL,
    clock bigint NOT NULL
) WITH (fillfactor = 10);
INSERT INTO {schema}.statepact_counter (newest, oldest, clock) VALUES (0, 1, 1);

CREATE FUNCTION {schema}.statepact_check_fence(resource text, token bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $statepact$
DECLARE
    key bigint := hashtextextended('{name}/r/' || resource, 0);
    current bigint;
    next_sequence bigint;
    now_ms bigint;
BEGIN
    IF resource IS NULL OR token IS NULL OR token < 1
        OR octet_length(resource) NOT BETWEEN 1 AND 512 OR resource ~ '[\u0001-\u001f\u007f-\u009f]'
    THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'a resource is 1 to 512 bytes without control characters, a token 1 or more';
    END IF;
    -- Held until the caller's transaction ends: no newer token is issued
    -- before that.
    PERFORM pg_advisory_xact_lock_shared(key);
    -- A transaction whose snapshot is older than the newest token fails to
    -- lock the key, with 40001, instead of reading an old mark. The holder can
    -- renew meanwhile: that leaves the key alone.
    SELECT l.mark INTO current FROM {schema}.statepact_leases l
        WHERE l.resource = statepact_check_fence.resource FOR KEY SHARE;
    IF current IS NULL OR current < token THEN
        -- The token was issued by a life of the store that this one has not
        -- seen: it becomes the mark.
        PERFORM pg_advisory_xact_lock(key);
        SELECT l.mark INTO current FROM {schema}.statepact_leases l
            WHERE l.resource = statepact_check_fence.resource FOR UPDATE;
        IF current IS NULL OR current < token THEN
            INSERT INTO {schema}.statepact_leases AS l (resource, mark)
                VALUES (resource, token)
                ON CONFLICT ON CONSTRAINT statepact_leases_pkey
                DO UPDATE SET mark = EXCLUDED.mark;
            UPDATE {schema}.statepact_counter c
                SET newest = c.newest + 1,
                    clock = greatest(c.clock,
                        floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
                RETURNING c.newest, c.clock INTO next_sequence, now_ms;
            INSERT INTO {schema}.statepact_log (sequence, at, event) VALUES (next_sequence, now_ms,
                json_build_object('committed', json_build_object(
                    'agent', 'statepact_check_fence',
                    'id', NULL,
                    'fences', json_build_array(json_build_array(resource, token)),
                    'changes', '[]'::json)));
        END IF;
    END IF;
    IF current > token THEN
        RAISE EXCEPTION USING ERRCODE = 'SP001',
            MESSAGE = format('lease on resource `%s` with token %s is lost: token %s superseded it',
                resource, token, current),
            HINT = 'Stop the work: never retry with this token.';
    END IF;
END
$statepact$;
REVOKE ALL ON FUNCTION {schema}.statepact_check_fence(text, bigint) FROM PUBLIC;
COMMENT ON FUNCTION {schema}.statepact_check_fence(text, bigint) IS
    'Raises SP001 when the token is below the mark of the resource; otherwise no newer token is issued until this transaction ends.';
