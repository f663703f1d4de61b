//! Events as they are stored: JSON, with numbers as text.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::{Event, EventKind, ResourceChange};
use crate::lease::Token;
use crate::resource::{AgentName, FieldName, OwnerName, ResourceName, Ttl, Value};

/// A number that is stored as text, so that Lua keeps all its digits.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct Digits<T: std::str::FromStr + ToString + Clone>(T);

impl<T: std::str::FromStr + ToString + Clone> From<Digits<T>> for String {
    fn from(number: Digits<T>) -> Self {
        number.0.to_string()
    }
}

impl<T: std::str::FromStr + ToString + Clone> TryFrom<String> for Digits<T> {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
            .map(Self)
            .map_err(|_| format!("`{text}` is no number"))
    }
}

/// An event as `write.lua` stores it. What is empty is left out: Lua cannot
/// tell an empty list from an empty map.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredEvent {
    at: Digits<i64>,
    #[serde(flatten)]
    kind: StoredKind,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum StoredKind {
    Acquired {
        resource: ResourceName,
        owner: OwnerName,
        token: Digits<u64>,
        expires: Digits<i64>,
        ttl: Digits<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        created: Option<Digits<u64>>,
    },
    Released {
        resource: ResourceName,
        owner: OwnerName,
        token: Digits<u64>,
    },
    Revoked {
        resource: ResourceName,
        mark: Digits<u64>,
    },
    Imported {
        resource: ResourceName,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mark: Option<Digits<u64>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<Digits<u64>>,
    },
    Committed {
        agent: AgentName,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        fences: Vec<(ResourceName, Digits<u64>)>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        changes: Vec<StoredChange>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredChange {
    resource: ResourceName,
    version: Digits<u64>,
    deleted: bool,
    fenced: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    fields: Vec<(FieldName, Option<String>)>,
}

impl StoredEvent {
    pub(super) fn of(event: &Event) -> Self {
        Self {
            at: Digits(event.at.as_millis()),
            kind: StoredKind::of(&event.kind),
        }
    }

    pub(super) fn into_event(self, sequence: u64) -> Result<Event> {
        Ok(Event {
            sequence,
            at: Timestamp::from_millis(self.at.0),
            kind: self.kind.into_kind()?,
        })
    }
}

impl StoredKind {
    fn of(kind: &EventKind) -> Self {
        match kind.clone() {
            EventKind::Acquired {
                resource,
                owner,
                token,
                expires_at,
                ttl,
                created,
            } => Self::Acquired {
                resource,
                owner,
                token: Digits(token.get()),
                expires: Digits(expires_at.as_millis()),
                ttl: Digits(ttl.as_millis()),
                created: created.map(Digits),
            },
            EventKind::Released {
                resource,
                owner,
                token,
            } => Self::Released {
                resource,
                owner,
                token: Digits(token.get()),
            },
            EventKind::Revoked { resource, mark } => Self::Revoked {
                resource,
                mark: Digits(mark.get()),
            },
            EventKind::Imported {
                resource,
                mark,
                version,
            } => Self::Imported {
                resource,
                mark: mark.map(|mark| Digits(mark.get())),
                version: version.map(Digits),
            },
            EventKind::Committed {
                agent,
                id,
                fences,
                changes,
            } => Self::Committed {
                agent,
                id: id.map(|id| id.to_string()),
                fences: fences
                    .into_iter()
                    .map(|(resource, token)| (resource, Digits(token.get())))
                    .collect(),
                changes: changes.into_iter().map(StoredChange::of).collect(),
            },
        }
    }

    fn into_kind(self) -> Result<EventKind> {
        Ok(match self {
            Self::Acquired {
                resource,
                owner,
                token,
                expires,
                ttl,
                created,
            } => EventKind::Acquired {
                resource,
                owner,
                token: Token::new(token.0)?,
                expires_at: Timestamp::from_millis(expires.0),
                ttl: Ttl::from_millis(ttl.0)?,
                created: created.map(|version| version.0),
            },
            Self::Released {
                resource,
                owner,
                token,
            } => EventKind::Released {
                resource,
                owner,
                token: Token::new(token.0)?,
            },
            Self::Revoked { resource, mark } => EventKind::Revoked {
                resource,
                mark: Token::new(mark.0)?,
            },
            Self::Imported {
                resource,
                mark,
                version,
            } => EventKind::Imported {
                resource,
                mark: mark.map(|mark| Token::new(mark.0)).transpose()?,
                version: version.map(|version| version.0),
            },
            Self::Committed {
                agent,
                id,
                fences,
                changes,
            } => EventKind::Committed {
                agent,
                id: id.map(|id| id.parse()).transpose()?,
                fences: fences
                    .into_iter()
                    .map(|(resource, token)| Ok((resource, Token::new(token.0)?)))
                    .collect::<Result<_>>()?,
                changes: changes
                    .into_iter()
                    .map(StoredChange::into_change)
                    .collect::<Result<_>>()?,
            },
        })
    }
}

impl StoredChange {
    fn of(change: ResourceChange) -> Self {
        Self {
            resource: change.resource,
            version: Digits(change.version),
            deleted: change.deleted,
            fenced: change.fenced,
            fields: change
                .fields
                .into_iter()
                .map(|(field, value)| (field, value.map(|value| value.as_str().to_owned())))
                .collect(),
        }
    }

    fn into_change(self) -> Result<ResourceChange> {
        let mut fields = self
            .fields
            .into_iter()
            .map(|(field, text)| Ok((field, text.as_deref().map(Value::parse).transpose()?)))
            .collect::<Result<Vec<_>>>()?;
        // A replacement first deletes what it does not name, which the script
        // found in the order of the hash.
        let deleted = fields.iter().take_while(|(_, value)| value.is_none());
        let deleted = deleted.count();
        if let Some(deleted) = fields.get_mut(..deleted) {
            deleted.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        Ok(ResourceChange {
            resource: self.resource,
            version: self.version.0,
            deleted: self.deleted,
            fenced: self.fenced,
            fields,
        })
    }
}
