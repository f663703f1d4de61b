//! How to open a store on a Redis server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::redis::{
    Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, TlsCertificates,
};

use super::Redis;
use super::connection::Target;
use super::keys::{DEFAULT_PREFIX, Keys};
use crate::backend::memory::DEFAULT_HISTORY;
use crate::clock::Clock;
use crate::error::{Error, Result};

/// What a URL may say after `?`.
const URL_OPTIONS: &str = "prefix, history, connect_timeout_ms, timeout_ms, allow_eviction, ca_file; for a socket user, pass, db";

/// How to open a store on a Redis or Valkey server.
///
/// ```no_run
/// use statepact::backend::redis::RedisOptions;
/// use std::time::Duration;
///
/// # async fn open() -> statepact::Result<()> {
/// let store = RedisOptions::new("redis://user:password@redis.internal:6379/0")
///     .prefix("billing")
///     .timeout(Duration::from_secs(2))
///     .open()
///     .await?;
/// for warning in store.warnings() {
///     eprintln!("{warning}");
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RedisOptions {
    url: String,
    prefix: Option<String>,
    connect_timeout: Option<Duration>,
    timeout: Option<Duration>,
    history: Option<u64>,
    allow_eviction: Option<bool>,
    ca_file: Option<PathBuf>,
    clock: Option<Arc<dyn Clock>>,
}

impl std::fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may have a password in it.
        f.debug_struct("RedisOptions")
            .field("prefix", &self.prefix)
            .field("connect_timeout", &self.connect_timeout)
            .field("timeout", &self.timeout)
            .field("history", &self.history)
            .field("allow_eviction", &self.allow_eviction)
            .field("ca_file", &self.ca_file)
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

/// The options with nothing left open.
pub(super) struct Settled {
    pub(super) target: Target,
    pub(super) keys: Keys,
    pub(super) history: u64,
    pub(super) clock: Option<Arc<dyn Clock>>,
}

impl RedisOptions {
    /// The server that `url` names, with the defaults: prefix `statepact`,
    /// 100,000 events kept, 5 s to connect and for each call, no eviction.
    ///
    /// `redis://[USER][:PASSWORD]@HOST[:PORT][/DB]`, the same with `rediss:`
    /// for TLS, or `redis+unix:///PATH` for a socket; `valkey` may stand for
    /// `redis` in each. The options below can be given after `?`, as
    /// `prefix=…`, `history=…`, `connect_timeout_ms=…`, `timeout_ms=…`,
    /// `allow_eviction=true` and `ca_file=…`; a method called here wins over the URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            prefix: None,
            connect_timeout: None,
            timeout: None,
            history: None,
            allow_eviction: None,
            ca_file: None,
            clock: None,
        }
    }

    /// What the keys begin with, in braces: 1 to 512 bytes without control
    /// characters. Stores with different prefixes share nothing.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// How long connecting may take before [`Error::Unavailable`]: 5 s by
    /// default.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// How long to wait for the answer of a call: 5 s by default. Then a call
    /// that changes something is [`Error::OutcomeUnknown`], and one that reads
    /// [`Error::Unavailable`].
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How many events to keep, at least 1: 100,000 by default. A tenth more
    /// is kept until the next pruning. A commit id is remembered as long as
    /// its event (R26).
    #[must_use]
    pub fn history(mut self, events: u64) -> Self {
        self.history = Some(events);
        self
    }

    /// Whether to use a server that may evict keys without an expiry, and with
    /// them the marks that keep tokens growing (R1). Off by default.
    #[must_use]
    pub fn allow_eviction(mut self, allow: bool) -> Self {
        self.allow_eviction = Some(allow);
        self
    }

    /// A PEM file with the authorities that may vouch for the server, instead
    /// of those that this machine trusts. For `rediss:` URLs.
    #[must_use]
    pub fn ca_file(mut self, path: impl AsRef<Path>) -> Self {
        self.ca_file = Some(path.as_ref().to_owned());
        self
    }

    /// For tests: the time of this clock instead of the server's (R11). It is
    /// sent along with every call, and all handles of the store must have it.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Connects, and opens the store.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the URL or an option is none;
    /// [`Error::Unavailable`] when the server cannot be reached;
    /// [`Error::Storage`] when it refuses the user, or when it evicts keys and
    /// that was not allowed.
    pub async fn open(self) -> Result<Redis> {
        Redis::connect(self.settle()?).await
    }

    pub(super) fn settle(mut self) -> Result<Settled> {
        let info = self.read_url()?;
        for (argument, timeout) in [
            ("connect_timeout", self.connect_timeout),
            ("timeout", self.timeout),
        ] {
            if timeout.is_some_and(|timeout| timeout.is_zero()) {
                return Err(Error::invalid(
                    argument,
                    "it is zero: nothing is answered that soon",
                ));
            }
        }
        let server = info.addr().to_string();
        let client = self.client(info)?;
        Ok(Settled {
            target: Target {
                client,
                server,
                connect_timeout: self.connect_timeout.unwrap_or(Duration::from_secs(5)),
                timeout: self.timeout.unwrap_or(Duration::from_secs(5)),
                allow_eviction: self.allow_eviction.unwrap_or(false),
            },
            keys: Keys::new(self.prefix.as_deref().unwrap_or(DEFAULT_PREFIX))?,
            // No event could be told from none kept, so the newest one stays.
            history: self.history.unwrap_or(DEFAULT_HISTORY).clamp(1, 1 << 50),
            clock: self.clock,
        })
    }

    fn client(&self, info: ConnectionInfo) -> Result<Client> {
        let is_tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        if is_tls {
            // Without one the library would panic in an application that has
            // several to choose from; one that is installed already stays.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let client = match &self.ca_file {
            None => Client::open(info),
            Some(path) if is_tls => {
                let certificates = std::fs::read(path).map_err(|error| Error::Storage {
                    message: format!("cannot read ca_file `{}`: {error}", path.display()),
                })?;
                let certificates = TlsCertificates {
                    client_tls: None,
                    root_cert: Some(certificates),
                };
                Client::build_with_tls(info, certificates)
            }
            Some(_) => return Err(bad_url("`ca_file` needs the scheme `rediss` or `valkeys`")),
        };
        client.map_err(|error| bad_url(&error.to_string()))
    }

    /// Takes the options out of the URL, and leaves the server's address.
    fn read_url(&mut self) -> Result<ConnectionInfo> {
        let mut url = ::redis::parse_redis_url(&self.url)
            .ok_or_else(|| bad_url("it is not of the form redis://USER:PASSWORD@HOST:PORT/DB"))?;
        if url.fragment().is_some() {
            return Err(bad_url("it has a `#`: in names and passwords write %23"));
        }
        let options: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let is_socket = url.scheme().ends_with("unix");
        let mut left = Vec::new();
        for (name, value) in options {
            match name.as_str() {
                "prefix" => {
                    self.prefix.get_or_insert(value);
                }
                "history" => {
                    self.history.get_or_insert(number(&name, &value)?);
                }
                "connect_timeout_ms" => {
                    let millis = number(&name, &value)?;
                    self.connect_timeout
                        .get_or_insert(Duration::from_millis(millis));
                }
                "timeout_ms" => {
                    let millis = number(&name, &value)?;
                    self.timeout.get_or_insert(Duration::from_millis(millis));
                }
                "allow_eviction" => {
                    let allow = value
                        .parse()
                        .map_err(|_| bad_url("`allow_eviction` is neither `true` nor `false`"))?;
                    self.allow_eviction.get_or_insert(allow);
                }
                "ca_file" => {
                    self.ca_file.get_or_insert(value.into());
                }
                "user" | "pass" | "db" if is_socket => left.push((name, value)),
                _ => {
                    return Err(bad_url(&format!(
                        "`{name}` is no option; the options are {URL_OPTIONS}"
                    )));
                }
            }
        }
        url.set_query(None);
        if !left.is_empty() {
            url.query_pairs_mut().extend_pairs(&left);
        }
        let info = url
            .into_connection_info()
            .map_err(|error| bad_url(&error.to_string()))?;
        // The newer protocol tells of a lost connection at once.
        let settings = info
            .redis_settings()
            .clone()
            .set_protocol(ProtocolVersion::RESP3);
        Ok(info.set_redis_settings(settings))
    }
}

fn number(name: &str, value: &str) -> Result<u64> {
    value
        .parse()
        .map_err(|_| bad_url(&format!("`{name}` is no whole number")))
}

fn bad_url(why: &str) -> Error {
    Error::invalid("store", format!("the Redis URL cannot be used: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(url: &str) -> Settled {
        RedisOptions::new(url).settle().unwrap()
    }

    #[test]
    fn a_url_says_all_that_the_options_say() {
        let found = settled(
            "valkey://u:p@host:7/3?prefix=a%7Bb&history=9&timeout_ms=70&connect_timeout_ms=80\
             &allow_eviction=true",
        );
        assert_eq!(found.target.server, "host:7");
        assert_eq!(found.target.timeout, Duration::from_millis(70));
        assert_eq!(found.target.connect_timeout, Duration::from_millis(80));
        assert!(found.target.allow_eviction);
        assert_eq!(found.history, 9);
        assert_eq!(found.keys.named("x"), "{a%7Bb}:x");
        let settings = found.target.client.get_connection_info().redis_settings();
        assert_eq!(settings.db(), 3);
        assert_eq!(settings.password(), Some("p"));
    }

    #[test]
    fn a_method_wins_over_the_url() {
        let options = RedisOptions::new("redis://host?prefix=a&history=9")
            .prefix("b")
            .history(0);
        let found = options.settle().unwrap();
        assert_eq!(found.keys.named("x"), "{b}:x");
        assert_eq!(found.history, 1);
    }

    #[test]
    fn what_is_no_url_or_no_option_is_refused_without_the_password() {
        for url in [
            "",
            "redis:",
            "redis://",
            "http://u:secret@host",
            "redis://u:secret@host/x",
            "redis://u:secret@host?prefx=a",
            "redis://u:secret@host?history=-1",
            "redis://u:secret@host?allow_eviction=perhaps",
            "redis://u:secret@host?db=1",
            "redis://u:secret@host?ca_file=x",
            "redis://u:secret@host?timeout_ms=0",
            "rediss://u:secret@host/#insecure",
        ] {
            let Err(Error::InvalidArgument { message, .. }) = RedisOptions::new(url).settle()
            else {
                panic!("{url}");
            };
            assert!(!message.contains("secret"), "{message}");
        }
        let shown = format!("{:?}", RedisOptions::new("redis://u:secret@host"));
        assert!(!shown.contains("secret"), "{shown}");
    }
}
