//! What the scripts answer, as values and errors of this crate.

use std::collections::BTreeMap;

use ::redis::Value as Reply;

use super::event::StoredEvent;
use crate::clock::Timestamp;
use crate::error::{Error, LossReason, Result};
use crate::event::Event;
use crate::lease::Token;
use crate::resource::{
    FieldName, FieldState, MAX_STATE_BYTES, OwnerName, ResourceState, Ttl, Value,
};
use crate::rules::{Entry, LeaseRecord, ResourceRecord};

/// The parts of an answer, read one after another.
#[derive(Debug)]
pub(super) struct Parts {
    parts: std::vec::IntoIter<Reply>,
    /// Where they come from, for errors.
    place: String,
}

impl Parts {
    /// The parts of a script's answer after its name; the error that it says
    /// when it refused.
    pub(super) fn of_answer(answer: Vec<Reply>, script: &str) -> Result<Self> {
        let mut parts = Self::new(answer, format!("answer of script `{script}`"));
        match parts.text()?.as_str() {
            "acquired" | "renewed" | "released" | "revoked" | "committed" | "status" | "now"
            | "states" | "list" | "events" | "check" | "receipts" | "access" | "export"
            | "imported" => Ok(parts),
            refusal => Err(parts.refusal(refusal)?),
        }
    }

    pub(super) fn new(parts: Vec<Reply>, place: String) -> Self {
        Self {
            parts: parts.into_iter(),
            place,
        }
    }

    fn refusal(&mut self, refusal: &str) -> Result<Error> {
        Ok(match refusal {
            "corrupt" => Error::Corrupt {
                location: format!("key `{}`", self.text()?),
                message: self.text()?,
            },
            "not_found" => Error::ResourceNotFound {
                resource: self.parse()?,
            },
            "held" => Error::LeaseNotAvailable {
                resource: self.parse()?,
                owner: self.parse()?,
                expires_at: self.timestamp()?,
            },
            "lost" => Error::LeaseLost {
                resource: self.parse()?,
                token: self.token()?,
                reason: match self.text()?.as_str() {
                    "expired" => LossReason::Expired,
                    "released" => LossReason::Released,
                    "superseded" => LossReason::Superseded { by: self.token()? },
                    other => return Err(self.wrong(&format!("reason {other:?}"))),
                },
            },
            "fence_required" => Error::FenceRequired {
                resource: self.parse()?,
            },
            "conflict" => Error::Conflict {
                resource: self.parse()?,
                field: match self.text()?.as_str() {
                    "" => None,
                    field => Some(FieldName::new(field)?),
                },
            },
            "exhausted" => Error::TokensExhausted {
                resource: self.parse()?,
            },
            "invalid_id" => Error::invalid(
                "commit_id",
                "another commit was made with this id; use a new one",
            ),
            "too_large" => Error::invalid(
                "writes",
                format!(
                    "resource `{}` would hold {} bytes; the limit is {MAX_STATE_BYTES}",
                    self.text()?,
                    self.text()?
                ),
            ),
            "no_permission" => Error::Storage {
                message: format!(
                    "the Redis user may not run {} on key `{}`: grant it what \
                     docs/redis-keys.md lists",
                    self.text()?,
                    self.text()?
                ),
            },
            other => self.wrong(&format!("{other:?}")),
        })
    }

    pub(super) fn wrong(&self, found: &str) -> Error {
        Error::Corrupt {
            location: self.place.clone(),
            message: format!("{found} is not what belongs there"),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.as_slice().is_empty()
    }

    fn next(&mut self) -> Result<Reply> {
        self.parts.next().ok_or_else(|| self.wrong("the end"))
    }

    pub(super) fn optional_text(&mut self) -> Result<Option<String>> {
        match self.next()? {
            Reply::Nil => Ok(None),
            Reply::BulkString(bytes) => match String::from_utf8(bytes) {
                Ok(text) => Ok(Some(text)),
                Err(error) => Err(self.wrong(&format!("`{}`", error.into_bytes().escape_ascii()))),
            },
            Reply::SimpleString(text) => Ok(Some(text)),
            other => Err(self.wrong(&format!("{other:?}"))),
        }
    }

    pub(super) fn text(&mut self) -> Result<String> {
        self.optional_text()?.ok_or_else(|| self.wrong("nothing"))
    }

    /// A nested answer; `None` for nothing.
    pub(super) fn optional_parts(&mut self) -> Result<Option<Self>> {
        match self.next()? {
            Reply::Nil => Ok(None),
            Reply::Array(parts) => Ok(Some(Self::new(parts, self.place.clone()))),
            other => Err(self.wrong(&format!("{other:?}"))),
        }
    }

    pub(super) fn nested(&mut self) -> Result<Self> {
        self.optional_parts()?.ok_or_else(|| self.wrong("nothing"))
    }

    /// A name, held to its limits.
    pub(super) fn parse<T: TryFrom<String, Error = Error>>(&mut self) -> Result<T> {
        let text = self.text()?;
        T::try_from(text).map_err(|error| self.wrong(&error.to_string()))
    }

    pub(super) fn number<T: std::str::FromStr>(&mut self) -> Result<T> {
        let text = self.text()?;
        text.parse().map_err(|_| self.wrong(&format!("`{text}`")))
    }

    pub(super) fn token(&mut self) -> Result<Token> {
        let number = self.number()?;
        Token::new(number).map_err(|error| self.wrong(&error.to_string()))
    }

    pub(super) fn optional_token(&mut self) -> Result<Option<Token>> {
        match self.optional_text()? {
            None => Ok(None),
            Some(text) => match text.parse().map(Token::new) {
                Ok(Ok(token)) => Ok(Some(token)),
                _ => Err(self.wrong(&format!("`{text}`"))),
            },
        }
    }

    pub(super) fn timestamp(&mut self) -> Result<Timestamp> {
        self.number().map(Timestamp::from_millis)
    }

    pub(super) fn flag(&mut self) -> Result<bool> {
        match self.text()?.as_str() {
            "0" => Ok(false),
            "1" => Ok(true),
            other => Err(self.wrong(&format!("`{other}`"))),
        }
    }

    fn ttl(&mut self) -> Result<Ttl> {
        let millis = self.number()?;
        Ttl::from_millis(millis).map_err(|error| self.wrong(&error.to_string()))
    }

    /// A mark and a lease, as `status.lua` and its like answer them.
    pub(super) fn ownership(&mut self) -> Result<Entry> {
        let mark = self.optional_token()?;
        let lease = self.optional_parts()?.map(|mut parts| {
            Ok::<_, Error>(LeaseRecord {
                owner: parts.parse::<OwnerName>()?,
                token: parts.token()?,
                expires_at: parts.timestamp()?,
                ttl: parts.ttl()?,
            })
        });
        Ok(Entry {
            mark,
            lease: lease.transpose()?,
            resource: None,
        })
    }

    /// A state, as `HGETALL` gives its hash under `key`.
    pub(super) fn state(self, key: &str) -> Result<ResourceState> {
        Ok(self.record(key)?.state)
    }

    /// A state, and whether it exists or was deleted.
    pub(super) fn record(mut self, key: &str) -> Result<ResourceRecord> {
        self.place = format!("key `{key}`");
        let (mut version, mut fenced, mut bytes) = (None, None, None);
        let mut exists = true;
        let mut values: BTreeMap<FieldName, Value> = BTreeMap::new();
        let mut versions: BTreeMap<FieldName, u64> = BTreeMap::new();
        while !self.is_empty() {
            let name = self.text()?;
            match name.split_once(':') {
                Some(("v", field)) => {
                    let field = self.field(field)?;
                    versions.insert(field, self.number()?);
                }
                Some(("f", field)) => {
                    let field = self.field(field)?;
                    values.insert(field, self.json()?);
                }
                _ => match name.as_str() {
                    "version" => version = Some(self.number()?),
                    "fenced" => fenced = Some(self.flag()?),
                    "bytes" => bytes = Some(self.number::<usize>()?),
                    "exists" => exists = self.flag()?,
                    other => return Err(self.wrong(&format!("{other:?}"))),
                },
            }
        }
        let (Some(version), Some(fenced)) = (version, fenced) else {
            return Err(self.wrong("a state without version and `fenced`"));
        };
        let found: usize = values
            .iter()
            .map(|(field, value)| field.as_str().len() + value.as_str().len())
            .sum();
        if bytes != Some(found) {
            return Err(self.wrong(&format!("a state of {found} bytes, counted as {bytes:?}")));
        }
        let mut fields = BTreeMap::new();
        for (field, value) in values {
            let Some(at) = versions.remove(&field).filter(|at| *at <= version) else {
                return Err(self.wrong(&format!("field `{field}` without a version of its own")));
            };
            fields.insert(field, FieldState { value, version: at });
        }
        if let Some((field, _)) = versions.pop_first() {
            return Err(self.wrong(&format!("field `{field}` without a value")));
        }
        Ok(ResourceRecord {
            exists,
            state: ResourceState {
                version,
                fenced,
                fields,
            },
        })
    }

    fn field(&self, name: &str) -> Result<FieldName> {
        FieldName::new(name).map_err(|error| self.wrong(&error.to_string()))
    }

    fn json(&mut self) -> Result<Value> {
        let text = self.text()?;
        Value::parse(&text).map_err(|error| self.wrong(&error.to_string()))
    }

    /// An event, as `XRANGE` gives it from the stream under `key`.
    pub(super) fn event(&mut self, key: &str) -> Result<Event> {
        let mut entry = self.nested()?;
        entry.place = format!("key `{key}`");
        let id = entry.text()?;
        entry.place = format!("key `{key}`, event {id}");
        let sequence = id
            .strip_suffix("-0")
            .and_then(|sequence| sequence.parse().ok())
            .ok_or_else(|| entry.wrong("its id"))?;
        let mut fields = entry.nested()?;
        if fields.text()? != "event" {
            return Err(fields.wrong("its first field"));
        }
        let text = fields.text()?;
        let stored: StoredEvent = serde_json::from_str(&text)
            .map_err(|error| fields.wrong(&format!("JSON that does not decode ({error})")))?;
        stored
            .into_event(sequence)
            .map_err(|error| fields.wrong(&error.to_string()))
    }
}
