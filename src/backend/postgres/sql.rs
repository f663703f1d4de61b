//! The statements, written out once for a store's schema.

use std::sync::Arc;

use super::options::PostgresOptions;
use super::schema::{begin, begin_snapshot, quoted};

/// Every name is qualified: nothing rests on a session's search path.
#[derive(Debug)]
pub(super) struct Sql {
    pub(super) begin: Arc<str>,
    pub(super) begin_snapshot: Arc<str>,
    pub(super) rollback: Arc<str>,
    pub(super) commit: Arc<str>,
    pub(super) lock: Arc<str>,
    pub(super) leases_locked: Arc<str>,
    pub(super) leases: Arc<str>,
    pub(super) resources: Arc<str>,
    pub(super) resources_and_fields: Arc<str>,
    pub(super) receipt: Arc<str>,
    pub(super) counter: Arc<str>,
    pub(super) counter_locked: Arc<str>,
    pub(super) put_leases: Arc<str>,
    pub(super) update_leases: Arc<str>,
    pub(super) put_resources: Arc<str>,
    pub(super) delete_fields: Arc<str>,
    pub(super) put_fields: Arc<str>,
    pub(super) append: Arc<str>,
    pub(super) append_with_receipt: Arc<str>,
    pub(super) append_copied: Arc<str>,
    pub(super) prune: Arc<str>,
    pub(super) notify: Arc<str>,
    pub(super) now: Arc<str>,
    pub(super) status: Arc<str>,
    pub(super) read: Arc<str>,
    pub(super) list: Arc<str>,
    pub(super) events: Arc<str>,
    pub(super) export_after: Arc<str>,
    pub(super) export_of: Arc<str>,
    pub(super) check_leases: Arc<str>,
    pub(super) check_resources: Arc<str>,
    pub(super) check_orphans: Arc<str>,
    pub(super) check_receipts: Arc<str>,
}

impl Sql {
    #[expect(clippy::too_many_lines, reason = "one statement after another")]
    pub(super) fn new(options: &PostgresOptions) -> Self {
        let name = &options.schema;
        let schema = quoted(name);
        let leases = format!("{schema}.statepact_leases");
        let resources = format!("{schema}.statepact_resources");
        let fields = format!("{schema}.statepact_fields");
        let log = format!("{schema}.statepact_log");
        let receipts = format!("{schema}.statepact_receipts");
        let counter = format!("{schema}.statepact_counter");
        // Parameters 1 and 2: the time of a clock of the caller's, or NULL for
        // the server's; the latest time that this handle has seen.
        let now = "greatest($2, c.clock, \
             coalesce($1, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint))";
        let append = format!(
            "c AS (UPDATE {counter} SET newest = newest + cardinality($1), \
                 clock = greatest(clock, $2) RETURNING newest, clock), \
             e AS (INSERT INTO {log} (sequence, at, event) \
                 SELECT c.newest - cardinality($1) + t.nth, c.clock, t.event::json \
                 FROM c, unnest($1) WITH ORDINALITY AS t (event, nth))"
        );
        let exported = format!(
            "SELECT {now}, l.mark, l.owner, l.token, l.expires_at, l.ttl, \
                 n.resource, r.present, r.fenced, r.version, f.field, f.version, f.value::text \
             FROM {counter} c LEFT JOIN n ON true \
                 LEFT JOIN {leases} l ON l.resource = n.resource \
                 LEFT JOIN {resources} r ON r.resource = n.resource \
                 LEFT JOIN {fields} f ON f.resource = r.resource"
        );
        let sql = |text: String| -> Arc<str> { text.into() };
        Self {
            begin: begin(options),
            begin_snapshot: begin_snapshot(options),
            rollback: "ROLLBACK".into(),
            commit: "COMMIT".into(),
            // In the order of the keys and not of the names, which may share
            // one: the same order for everyone, so that nobody deadlocks.
            lock: sql(format!(
                "SELECT CASE WHEN exclusive THEN pg_advisory_xact_lock(key) \
                        ELSE pg_advisory_xact_lock_shared(key) END \
                 FROM (SELECT hashtextextended('{name}/' || name, 0) AS key, \
                           bool_or(exclusive) AS exclusive \
                       FROM unnest($1, $2) AS t (name, exclusive) \
                       GROUP BY 1 ORDER BY 1) AS keys"
            )),
            // Not FOR UPDATE: a transaction that has checked its fence does not
            // hold up a renewal.
            leases_locked: sql(format!(
                "SELECT resource, mark, owner, token, expires_at, ttl FROM {leases} \
                 WHERE resource = ANY($1) ORDER BY resource FOR NO KEY UPDATE"
            )),
            leases: sql(format!(
                "SELECT resource, mark, owner, token, expires_at, ttl FROM {leases} \
                 WHERE resource = ANY($1)"
            )),
            resources: sql(format!(
                "SELECT resource, present, fenced, version, \
                     NULL::text, NULL::bigint, NULL::text \
                 FROM {resources} WHERE resource = ANY($1)"
            )),
            resources_and_fields: sql(format!(
                "SELECT r.resource, r.present, r.fenced, r.version, \
                     f.field, f.version, f.value::text \
                 FROM {resources} r LEFT JOIN {fields} f ON f.resource = r.resource \
                     AND (r.resource = ANY($2) OR (f.resource, f.field) IN \
                         (SELECT t.resource, t.field FROM unnest($3, $4) AS t (resource, field))) \
                 WHERE r.resource = ANY($1)"
            )),
            receipt: sql(format!(
                "SELECT id, fingerprint, sequence, versions::text FROM {receipts} WHERE id = $1"
            )),
            counter: sql(format!("SELECT c.newest, c.oldest, {now} FROM {counter} c")),
            counter_locked: sql(format!(
                "SELECT c.newest, c.oldest, {now} FROM {counter} c FOR UPDATE"
            )),
            put_leases: sql(format!(
                "INSERT INTO {leases} AS l (resource, mark, owner, token, expires_at, ttl) \
                 SELECT * FROM unnest($1, $2, $3, $4, $5, $6) \
                 ON CONFLICT (resource) DO UPDATE SET mark = EXCLUDED.mark, \
                     owner = EXCLUDED.owner, token = EXCLUDED.token, \
                     expires_at = EXCLUDED.expires_at, ttl = EXCLUDED.ttl"
            )),
            update_leases: sql(format!(
                "UPDATE {leases} l SET owner = t.owner, token = t.token, \
                     expires_at = t.expires_at, ttl = t.ttl \
                 FROM unnest($1, $2, $3, $4, $5) AS t (resource, owner, token, expires_at, ttl) \
                 WHERE l.resource = t.resource"
            )),
            put_resources: sql(format!(
                "INSERT INTO {resources} (resource, present, fenced, version) \
                 SELECT * FROM unnest($1, $2, $3, $4) \
                 ON CONFLICT (resource) DO UPDATE SET present = EXCLUDED.present, \
                     fenced = EXCLUDED.fenced, version = EXCLUDED.version"
            )),
            delete_fields: sql(format!(
                "DELETE FROM {fields} f USING unnest($1, $2) AS t (resource, field) \
                 WHERE f.resource = t.resource AND f.field = t.field"
            )),
            put_fields: sql(format!(
                "INSERT INTO {fields} (resource, field, version, value) \
                 SELECT t.resource, t.field, t.version, t.value::json \
                 FROM unnest($1, $2, $3, $4) AS t (resource, field, version, value) \
                 ON CONFLICT (resource, field) DO UPDATE SET version = EXCLUDED.version, \
                     value = EXCLUDED.value"
            )),
            append: sql(format!("WITH {append} SELECT newest FROM c")),
            append_with_receipt: sql(format!(
                "WITH {append}, \
                 r AS (INSERT INTO {receipts} (id, fingerprint, sequence, versions) \
                     SELECT $3, $4, c.newest, $5::json FROM c) \
                 SELECT newest FROM c"
            )),
            append_copied: sql(format!(
                "WITH c AS (UPDATE {counter} SET newest = $4, clock = greatest(clock, $5), \
                     oldest = CASE WHEN newest = 0 THEN $6 ELSE oldest END) \
                 INSERT INTO {log} (sequence, at, event) \
                     SELECT t.sequence, t.at, t.event::json \
                     FROM unnest($1, $2, $3) AS t (sequence, at, event)"
            )),
            prune: sql(format!(
                "WITH c AS (UPDATE {counter} SET oldest = greatest(oldest, $1)), \
                 e AS (DELETE FROM {log} WHERE sequence < $1) \
                 DELETE FROM {receipts} WHERE sequence < $1"
            )),
            // Heard of when the transaction commits, and never if it does not.
            notify: sql(format!("SELECT pg_notify('{name}', $1)")),
            now: sql(format!("SELECT {now} FROM {counter} c")),
            status: sql(format!(
                "SELECT {now}, l.mark, l.owner, l.token, l.expires_at, l.ttl \
                 FROM {counter} c LEFT JOIN {leases} l ON l.resource = $3"
            )),
            read: sql(format!(
                "SELECT r.resource, r.present, r.fenced, r.version, \
                     f.field, f.version, f.value::text \
                 FROM {resources} r LEFT JOIN {fields} f ON f.resource = r.resource \
                 WHERE r.resource = ANY($1) AND r.present"
            )),
            // A name has no upper limit among those with its prefix: $5 is the
            // first text after all of them, or NULL.
            list: sql(format!(
                "SELECT {now}, l.mark, l.owner, l.token, l.expires_at, l.ttl, \
                     r.resource, r.fenced, r.version, \
                     (SELECT count(*) FROM {fields} f WHERE f.resource = r.resource) \
                 FROM {counter} c CROSS JOIN {resources} r \
                     LEFT JOIN {leases} l ON l.resource = r.resource \
                 WHERE r.present AND r.resource >= $3 AND ($4 IS NULL OR r.resource > $4) \
                     AND ($5 IS NULL OR r.resource < $5) \
                 ORDER BY r.resource LIMIT $6"
            )),
            events: sql(format!(
                "SELECT c.newest, c.oldest, e.sequence, e.at, e.event::text \
                 FROM {counter} c LEFT JOIN LATERAL \
                     (SELECT * FROM {log} WHERE sequence > $1 ORDER BY sequence LIMIT $2) e \
                     ON true \
                 ORDER BY e.sequence"
            )),
            export_after: sql(format!(
                "WITH n AS (SELECT resource FROM \
                     ((SELECT resource FROM {leases} WHERE $3 IS NULL OR resource > $3 \
                       ORDER BY resource LIMIT $4) \
                      UNION (SELECT resource FROM {resources} WHERE $3 IS NULL OR resource > $3 \
                       ORDER BY resource LIMIT $4)) AS named \
                     ORDER BY resource LIMIT $4) {exported}"
            )),
            export_of: sql(format!(
                "WITH n AS (SELECT DISTINCT unnest($3) AS resource) {exported}"
            )),
            check_leases: sql(format!(
                "SELECT resource, mark, owner, token, expires_at, ttl FROM {leases} \
                 WHERE resource > $1 ORDER BY resource LIMIT 1000"
            )),
            check_resources: sql(format!(
                "SELECT r.resource, r.present, r.fenced, r.version, \
                     f.field, f.version, f.value::text \
                 FROM (SELECT * FROM {resources} WHERE resource > $1 \
                       ORDER BY resource LIMIT 100) r \
                     LEFT JOIN {fields} f ON f.resource = r.resource \
                 ORDER BY r.resource, f.field"
            )),
            check_orphans: sql(format!(
                "SELECT f.resource, f.field FROM {fields} f LEFT JOIN {resources} r \
                 ON r.resource = f.resource WHERE r.present IS NOT TRUE LIMIT 1"
            )),
            check_receipts: sql(format!(
                "SELECT id, fingerprint, sequence, versions::text FROM {receipts} \
                 WHERE id > $1 ORDER BY id LIMIT 1000"
            )),
        }
    }
}
