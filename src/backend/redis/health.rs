//! What is looked at when a connection is made: whether the server may forget
//! what it was told.

use ::redis::Value;
use ::redis::aio::MultiplexedConnection;

use super::errors::{Sent, from_redis};
use crate::error::{Error, Result};

/// Refuses a server that evicts keys, and returns warnings of what else may
/// lose data.
pub(super) async fn examine(
    connection: &mut MultiplexedConnection,
    server: &str,
    allow_eviction: bool,
) -> Result<Vec<String>> {
    let mut asked = ::redis::pipe();
    // One parameter each: several in one command are understood since 7.0.
    for parameter in ["maxmemory-policy", "save", "appendonly"] {
        asked.cmd("CONFIG").arg("GET").arg(parameter);
    }
    asked.cmd("INFO");
    let answers = connection
        .send_packed_commands(&asked, 0, 4)
        .await
        .map_err(|error| from_redis(&error, Sent::Harmless, server, std::time::Duration::ZERO))?;
    let found = Found::from_answers(&answers);
    found.judge(server, allow_eviction)
}

/// What could be found out; `None` where the user may not ask.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    version: Option<String>,
    policy: Option<String>,
    save: Option<String>,
    appendonly: Option<bool>,
}

impl Found {
    fn from_answers(answers: &[Value]) -> Self {
        let config = |at: usize| answers.get(at).and_then(parameter);
        // Where CONFIG is not permitted, as with many hosted servers, INFO
        // says most of it.
        let info = answers.get(3).and_then(text).unwrap_or_default();
        Self {
            version: line_of(&info, "redis_version"),
            policy: config(0).or_else(|| line_of(&info, "maxmemory_policy")),
            save: config(1),
            appendonly: config(2)
                .map(|value| value == "yes")
                .or_else(|| line_of(&info, "aof_enabled").map(|value| value == "1")),
        }
    }

    fn judge(&self, server: &str, allow_eviction: bool) -> Result<Vec<String>> {
        let mut warnings = Vec::new();
        if let Some(version) = &self.version
            && is_too_old(version)
        {
            return Err(Error::Storage {
                message: format!(
                    "Redis at {server} is version {version}: 6.2 or later, or Valkey, is needed"
                ),
            });
        }
        match &self.policy {
            // `volatile-…` evicts keys that have an expiry, and none of ours has.
            Some(policy) if policy.starts_with("allkeys-") => {
                let what = format!(
                    "Redis at {server} has the maxmemory-policy `{policy}`: it may evict the \
                     marks, and then issue old tokens again"
                );
                if !allow_eviction {
                    return Err(Error::Storage {
                        message: format!(
                            "{what}: set it to `noeviction`, or give the option `allow_eviction`"
                        ),
                    });
                }
                warnings.push(what);
            }
            Some(_) => {}
            None => warnings.push(format!(
                "Redis at {server} does not say whether it evicts keys (CONFIG and INFO are not \
                 permitted): see that its maxmemory-policy is `noeviction`"
            )),
        }
        match (self.appendonly, self.save.as_deref()) {
            (Some(true), _) => {}
            (_, Some(save)) if !save.is_empty() => {}
            (Some(false), Some(_)) => warnings.push(format!(
                "Redis at {server} has no persistence (neither `appendonly` nor `save`): when it \
                 restarts, all is forgotten, and old tokens are issued again"
            )),
            _ => warnings.push(format!(
                "Redis at {server} does not say whether it persists data (CONFIG is not \
                 permitted): see that it has `appendonly yes`"
            )),
        }
        Ok(warnings)
    }
}

/// Streams are trimmed by their ids since 6.2. Valkey and others that stand in
/// for Redis name the version of it that they are like.
fn is_too_old(version: &str) -> bool {
    let mut parts = version
        .split('.')
        .map_while(|part| part.parse::<u32>().ok());
    match (parts.next(), parts.next()) {
        (Some(major), Some(minor)) => (major, minor) < (6, 2),
        _ => false,
    }
}

/// The value in an answer of `CONFIG GET` of one parameter.
fn parameter(answer: &Value) -> Option<String> {
    match answer {
        Value::Map(pairs) => pairs.first().and_then(|(_, value)| text(value)),
        Value::Array(parts) => parts.get(1).and_then(text),
        _ => None,
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

fn line_of(info: &str, name: &str) -> Option<String> {
    info.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(found, _)| *found == name)
        .map(|(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(policy: Option<&str>, save: Option<&str>, appendonly: Option<bool>) -> Found {
        Found {
            version: None,
            policy: policy.map(str::to_owned),
            save: save.map(str::to_owned),
            appendonly,
        }
    }

    #[test]
    fn only_policies_that_evict_marks_are_refused() {
        for (policy, refused) in [
            ("noeviction", false),
            ("volatile-lru", false),
            ("volatile-ttl", false),
            ("allkeys-lru", true),
            ("allkeys-lfu", true),
            ("allkeys-random", true),
        ] {
            let found = found(Some(policy), Some(""), Some(true));
            assert_eq!(found.judge("here", false).is_err(), refused, "{policy}");
            let allowed = found.judge("here", true).unwrap();
            assert_eq!(allowed.len(), usize::from(refused), "{policy}");
        }
    }

    #[test]
    fn a_server_that_forgets_or_does_not_say_is_warned_of() {
        for (save, appendonly, says) in [
            (Some(""), Some(true), None),
            (Some("3600 1"), Some(false), None),
            (Some("3600 1"), None, None),
            (Some(""), Some(false), Some("no persistence")),
            (None, Some(false), Some("does not say")),
            (None, None, Some("does not say")),
        ] {
            let warnings = found(Some("noeviction"), save, appendonly)
                .judge("here", false)
                .unwrap();
            match says {
                None => assert_eq!(warnings, Vec::<String>::new()),
                Some(says) => assert!(warnings.concat().contains(says), "{warnings:?}"),
            }
        }
    }

    #[test]
    fn a_server_that_cannot_trim_streams_is_refused() {
        for (version, refused) in [
            ("2.8.24", true),
            ("6.0.20", true),
            ("6.2.0", false),
            ("7.0.15", false),
            ("10.1.0", false),
            ("unstable", false),
        ] {
            let found = Found {
                version: Some(version.to_owned()),
                ..found(Some("noeviction"), None, Some(true))
            };
            let answer = found.judge("here", false);
            assert_eq!(answer.is_err(), refused, "{version}: {answer:?}");
        }
    }

    #[test]
    fn info_stands_in_for_config() {
        let denied = || Value::Nil;
        let info = "# Memory\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:1\r\n";
        let answers = [
            denied(),
            denied(),
            denied(),
            Value::BulkString(info.as_bytes().to_vec()),
        ];
        assert_eq!(
            Found::from_answers(&answers),
            found(Some("allkeys-lru"), None, Some(true))
        );
    }
}
