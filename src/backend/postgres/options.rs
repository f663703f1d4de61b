//! How to open a store, and what its URL says.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use super::super::memory::DEFAULT_HISTORY;
use super::Postgres;
use super::tls::Trust;
use crate::clock::Clock;
use crate::error::{Error, Result};

/// How to open a store in PostgreSQL.
///
/// ```no_run
/// use statepact::backend::postgres::PostgresOptions;
/// use std::time::Duration;
///
/// # async fn open() -> statepact::Result<()> {
/// let store = PostgresOptions::new()
///     .schema("jobs")
///     .pool_size(16)
///     .lock_timeout(Duration::from_secs(2))
///     .open("postgres://app:secret@db.example/app?sslmode=verify-full")
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    pub(super) schema: String,
    pub(super) pool_size: usize,
    pub(super) connect_timeout: Duration,
    pub(super) acquire_timeout: Duration,
    pub(super) statement_timeout: Duration,
    pub(super) lock_timeout: Duration,
    pub(super) history: u64,
    pub(super) migrate: bool,
    pub(super) listen: bool,
    pub(super) clock: Option<Arc<dyn Clock>>,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            schema: "statepact".to_owned(),
            pool_size: 8,
            connect_timeout: Duration::from_secs(5),
            acquire_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(10),
            lock_timeout: Duration::from_secs(5),
            history: DEFAULT_HISTORY,
            migrate: true,
            listen: true,
            clock: None,
        }
    }
}

impl PostgresOptions {
    /// The defaults: schema `statepact`, 8 connections, 5 s to connect, for a
    /// connection of the pool and for a lock, 10 s for a statement, 100,000
    /// events, migrates, the server's clock.
    pub fn new() -> Self {
        Self::default()
    }

    /// The schema that holds the store's tables: `statepact` by default. Stores
    /// in different schemas share nothing. 1 to 63 ASCII letters, digits, `_`
    /// and `-`. A `schema=` in the URL goes before it.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// How many connections to hold at most, at least 1: 8 by default.
    #[must_use]
    pub fn pool_size(mut self, connections: usize) -> Self {
        self.pool_size = connections.max(1);
        self
    }

    /// How long connecting may take: 5 s by default. A `connect_timeout=` in
    /// the URL holds for each of its addresses beside it.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long to wait for a connection of the pool before [`Error::Busy`]:
    /// 5 s by default.
    #[must_use]
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.acquire_timeout = timeout;
        self
    }

    /// How long the server may work on one statement: 10 s by default. A
    /// server from which nothing is heard is given up after twice this and the
    /// lock time-out.
    #[must_use]
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.statement_timeout = timeout;
        self
    }

    /// How long to wait for another transaction's lock before
    /// [`Error::Busy`]: 5 s by default.
    #[must_use]
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = timeout;
        self
    }

    /// How many events to keep, at least 1: 100,000 by default. A tenth more
    /// is kept until the next pruning. A commit id is remembered as long as
    /// its event (R26).
    #[must_use]
    pub fn history(mut self, events: u64) -> Self {
        self.history = events.max(1);
        self
    }

    /// Whether opening makes and updates the tables. On by default; without it
    /// the role needs no right to create anything, and a schema that is
    /// missing or old is refused.
    #[must_use]
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// Whether to hold one more connection while somebody in this process waits
    /// for a lease, to hear at once when another process has released it. On
    /// by default. Without it, or behind a pooler where it is of no use, who
    /// waits looks now and then.
    #[must_use]
    pub fn listen(mut self, listen: bool) -> Self {
        self.listen = listen;
        self
    }

    /// Takes the time from a clock of the caller's and not from the server:
    /// for tests. Every handle onto the store must be given the same one.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Opens the store at `url`, a PostgreSQL connection URL. Beside the
    /// parameters of the driver it may have `schema`, and `sslmode`
    /// (`disable`, `prefer`, `require`, `verify-ca`, `verify-full`) and
    /// `sslrootcert` (a file of PEM certificates, or `system`) as in libpq.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for what the URL says wrong;
    /// [`Error::Unavailable`] when the server cannot be reached;
    /// [`Error::Storage`] when it refuses, or the schema is of a newer version
    /// of this crate.
    pub async fn open(self, url: &str) -> Result<Postgres> {
        Postgres::connect(url, self).await
    }

    /// What a future of one round trip waits for at most.
    pub(super) fn patience(&self) -> Duration {
        self.statement_timeout * 2 + self.lock_timeout
    }
}

/// What a URL says.
pub(super) struct Target {
    pub(super) config: Config,
    pub(super) trust: Trust,
    pub(super) schema: Option<String>,
}

// The configuration has the password.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

/// Takes out of the URL what the driver does not know, and has it parse the
/// rest.
pub(super) fn parse_url(url: &str, connect_timeout: Duration) -> Result<Target> {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let mut rest = Vec::new();
    let (mut schema, mut mode, mut root) = (None, None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match name {
            "schema" => schema = Some(percent_decode(name, value)?),
            "sslmode" => mode = Some(percent_decode(name, value)?),
            "sslrootcert" => root = Some(percent_decode(name, value)?),
            _ => rest.push(pair),
        }
    }
    let mut driver_url = address.to_owned();
    if !rest.is_empty() {
        driver_url = format!("{address}?{}", rest.join("&"));
    }
    // The driver's own messages name the parameter, never the password.
    let mut config: Config = driver_url.parse().map_err(|error: tokio_postgres::Error| {
        invalid(format!(
            "not a PostgreSQL connection URL: {}",
            super::failure::describe(&error)
        ))
    })?;
    let root = root.map(|root| match root.as_str() {
        "system" => Trust::System,
        _ => Trust::File(PathBuf::from(&root)),
    });
    let (ssl_mode, trust) = match mode.as_deref() {
        Some("disable") => (SslMode::Disable, Trust::Anyone),
        None | Some("prefer") => (SslMode::Prefer, Trust::Anyone),
        // As in libpq: a root certificate makes `require` mean `verify-ca`.
        Some("require") => match root {
            None => (SslMode::Require, Trust::Anyone),
            Some(Trust::System) => (SslMode::Require, Trust::System),
            Some(root) => (SslMode::Require, Trust::AnyName(Box::new(root))),
        },
        Some("verify-ca") => {
            let root = root.unwrap_or(Trust::System);
            (SslMode::Require, Trust::AnyName(Box::new(root)))
        }
        Some("verify-full") => (SslMode::Require, root.unwrap_or(Trust::System)),
        Some(other) => {
            return Err(invalid(format!(
                "sslmode is `{other}`; it is one of disable, prefer, require, verify-ca and \
                 verify-full"
            )));
        }
    };
    config.ssl_mode(ssl_mode);
    if config.get_application_name().is_none() {
        config.application_name("statepact");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(connect_timeout);
    }
    // A server that has gone without a word is given up before the operating
    // system would.
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(Duration::from_secs(20));
    }
    if !query.contains("keepalives") {
        config.keepalives_idle(Duration::from_secs(30));
    }
    // Of several servers the one that takes writes, unless the URL says.
    if config.get_hosts().len() > 1 && !query.contains("target_session_attrs") {
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    Ok(Target {
        config,
        trust,
        schema,
    })
}

/// Refuses a name that would have to be quoted with care in a function's body.
pub(super) fn check_schema(schema: &str) -> Result<()> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if schema.is_empty() || schema.len() > 63 || !schema.bytes().all(legal) {
        return Err(Error::invalid(
            "schema",
            format!("{schema:?} is not 1 to 63 ASCII letters, digits, `_` and `-`"),
        ));
    }
    Ok(())
}

fn invalid(message: String) -> Error {
    Error::invalid("store", message)
}

fn percent_decode(name: &str, value: &str) -> Result<String> {
    let mut decoded = Vec::with_capacity(value.len());
    let mut bytes = value.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
        match (digit(), digit()) {
            (Some(high), Some(low)) => decoded.extend(u8::try_from(high * 16 + low)),
            _ => return Err(invalid(format!("`{name}` has a `%` without two digits"))),
        }
    }
    String::from_utf8(decoded).map_err(|_| invalid(format!("`{name}` is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Target> {
        parse_url(url, Duration::from_secs(1))
    }

    #[test]
    fn the_url_says_schema_and_tls() {
        let target =
            parse("postgresql://u@h/d?schema=a%5Fb&sslmode=verify-full&sslrootcert=/c.pem")
                .unwrap();
        assert_eq!(target.schema.as_deref(), Some("a_b"));
        assert_eq!(target.config.get_ssl_mode(), SslMode::Require);
        assert_eq!(target.trust, Trust::File("/c.pem".into()));
        let target = parse("postgres://u@h/d").unwrap();
        assert_eq!(target.schema, None);
        assert_eq!(target.config.get_ssl_mode(), SslMode::Prefer);
        assert_eq!(target.config.get_application_name(), Some("statepact"));
    }

    #[test]
    fn of_several_servers_it_takes_the_one_that_takes_writes() {
        for (url, attributes) in [
            ("postgres://a,b/d", TargetSessionAttrs::ReadWrite),
            ("postgres://a/d", TargetSessionAttrs::Any),
            (
                "postgres://a,b/d?target_session_attrs=any",
                TargetSessionAttrs::Any,
            ),
        ] {
            let target = parse(url).unwrap();
            assert_eq!(
                target.config.get_target_session_attrs(),
                attributes,
                "{url}"
            );
        }
    }

    #[test]
    fn require_with_a_root_certificate_verifies_the_authority() {
        let target = parse("postgres://h/d?sslmode=require&sslrootcert=/c.pem").unwrap();
        let file = Box::new(Trust::File("/c.pem".into()));
        assert_eq!(target.trust, Trust::AnyName(file));
    }

    #[test]
    fn a_wrong_url_is_refused_without_its_password() {
        for url in [
            "postgres://u:hunter2@h:port/d",
            "postgres://u:hunter2@h/d?sslmode=maybe",
            "postgres://u:hunter2@h/d?schema=%4",
            "postgres://u:hunter2@h/d?schema=%ff",
            "postgres://u:hunter2@h/d?colour=red",
        ] {
            let error = parse(url).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidArgument, "{url}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        let shown = format!("{:?}", parse("postgres://u:hunter2@h/d").unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn a_schema_that_needs_escaping_is_refused() {
        for schema in ["", "a\"b", "a b", "a$b", "é", &"x".repeat(64)] {
            assert!(check_schema(schema).is_err(), "{schema}");
        }
        check_schema("State_pact-2").unwrap();
    }
}
