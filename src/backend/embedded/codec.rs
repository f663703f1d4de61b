//! The bytes of a stored value: the only place that knows bincode.
//!
//! A value is `crc32 (4 bytes, little-endian) | format (1 byte) | payload`.
//! The CRC covers the table's name, the key, the format byte and the payload,
//! so that a value that turns up under another key is found out too (R29).
//! The payload is bincode 2 in its standard configuration, of the flat
//! structures below, with a limit on what it may allocate and nothing allowed
//! after it.

use bincode::error::DecodeError;
use bincode::{Decode, Encode, config};

use crate::backend::CommitReceipt;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::{Event, EventKind, ResourceChange};
use crate::lease::Token;
use crate::resource::{
    AgentName, CommitId, FieldName, FieldState, OwnerName, ResourceName, ResourceState, Ttl, Value,
};
use crate::rules::{LeaseRecord, ResourceRecord, StoredReceipt};

/// The format of values that this version writes, and the only one it reads.
pub(super) const FORMAT: u8 = 1;

/// What decoding a value may allocate is in proportion to its bytes, so that a
/// length in it that is wrong cannot ask for much. A field takes 3 bytes or
/// more of them and at most 56 in memory; this is twice that proportion.
const PROPORTION: usize = 32;
const SMALL: usize = 4 << 10;
const MEDIUM: usize = 1 << 20;
/// For values above [`MEDIUM`]: more than the limits on states and commits let
/// any value need.
const LARGE_LIMIT: usize = i32::MAX as usize;

/// Where a value is, for its checksum and for errors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) table: &'static str,
    pub(super) key: &'a [u8],
}

impl Place<'_> {
    fn corrupt(self, message: impl Into<String>) -> Error {
        let key = match std::str::from_utf8(self.key) {
            Ok(text) if !text.contains(char::is_control) => format!("`{text}`"),
            _ => format!("`{}`", self.key.escape_ascii()),
        };
        Error::Corrupt {
            location: format!("table `{}`, key {key}", self.table),
            message: message.into(),
        }
    }

    fn checksum(self, body: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(self.table.as_bytes());
        hasher.update(&[0xFF]);
        hasher.update(self.key);
        hasher.update(&[0xFF]);
        hasher.update(body);
        hasher.finalize()
    }
}

/// A structure that can be stored.
pub(super) trait Stored: Sized {
    type Wire: Encode + Decode<()>;
    fn to_wire(&self) -> Self::Wire;
    /// Fails with what is wrong when the values break the limits of the types.
    fn from_wire(wire: Self::Wire) -> Result<Self>;
}

pub(super) fn encode<T: Stored>(place: Place<'_>, value: &T) -> Result<Vec<u8>> {
    let mut bytes = vec![0, 0, 0, 0, FORMAT];
    bincode::encode_into_std_write(value.to_wire(), &mut bytes, config::standard())
        .map_err(|error| place.corrupt(format!("cannot be encoded: {error}")))?;
    let (checksum, body) = bytes
        .split_first_chunk_mut::<4>()
        .ok_or_else(|| place.corrupt("cannot be encoded"))?;
    *checksum = place.checksum(body).to_le_bytes();
    Ok(bytes)
}

/// Verifies the checksum; what follows it.
pub(super) fn verify<'a>(place: Place<'_>, bytes: &'a [u8]) -> Result<&'a [u8]> {
    let (checksum, body) = bytes
        .split_first_chunk::<4>()
        .ok_or_else(|| place.corrupt(format!("{} bytes are too few", bytes.len())))?;
    if u32::from_le_bytes(*checksum) != place.checksum(body) {
        return Err(place.corrupt("the checksum is wrong"));
    }
    Ok(body)
}

pub(super) fn decode<T: Stored>(place: Place<'_>, bytes: &[u8]) -> Result<T> {
    let (format, payload) = verify(place, bytes)?
        .split_first()
        .ok_or_else(|| place.corrupt("it ends after the checksum"))?;
    if *format != FORMAT {
        return Err(place.corrupt(format!(
            "format {format} is not one that this version reads"
        )));
    }
    let (wire, used) = if payload.len() <= SMALL {
        decode_within::<T::Wire, { SMALL * PROPORTION }>(payload)
    } else if payload.len() <= MEDIUM {
        decode_within::<T::Wire, { MEDIUM * PROPORTION }>(payload)
    } else {
        decode_within::<T::Wire, LARGE_LIMIT>(payload)
    }
    .map_err(|error| place.corrupt(format!("it does not decode: {error}")))?;
    if used != payload.len() {
        return Err(place.corrupt(format!(
            "{} bytes too many after the value",
            payload.len() - used
        )));
    }
    T::from_wire(wire).map_err(|error| place.corrupt(error.to_string()))
}

fn decode_within<W: Decode<()>, const LIMIT: usize>(
    payload: &[u8],
) -> Result<(W, usize), DecodeError> {
    bincode::decode_from_slice(payload, config::standard().with_limit::<LIMIT>())
}

impl Stored for Token {
    type Wire = u64;
    fn to_wire(&self) -> u64 {
        self.get()
    }
    fn from_wire(wire: u64) -> Result<Self> {
        Self::new(wire)
    }
}

#[derive(Encode, Decode)]
pub(super) struct LeaseWire {
    owner: String,
    token: u64,
    expires_at: i64,
    ttl: u64,
}

impl Stored for LeaseRecord {
    type Wire = LeaseWire;
    fn to_wire(&self) -> LeaseWire {
        LeaseWire {
            owner: self.owner.as_str().to_owned(),
            token: self.token.get(),
            expires_at: self.expires_at.as_millis(),
            ttl: self.ttl.as_millis(),
        }
    }
    fn from_wire(wire: LeaseWire) -> Result<Self> {
        Ok(Self {
            owner: OwnerName::new(wire.owner)?,
            token: Token::new(wire.token)?,
            expires_at: Timestamp::from_millis(wire.expires_at),
            ttl: Ttl::from_millis(wire.ttl)?,
        })
    }
}

#[derive(Encode, Decode)]
pub(super) struct ResourceWire {
    exists: bool,
    fenced: bool,
    version: u64,
    /// Name, version, JSON text.
    fields: Vec<(String, u64, String)>,
}

impl Stored for ResourceRecord {
    type Wire = ResourceWire;
    fn to_wire(&self) -> ResourceWire {
        ResourceWire {
            exists: self.exists,
            fenced: self.state.fenced,
            version: self.state.version,
            fields: self
                .state
                .fields
                .iter()
                .map(|(name, field)| {
                    (
                        name.as_str().to_owned(),
                        field.version,
                        field.value.as_str().to_owned(),
                    )
                })
                .collect(),
        }
    }
    fn from_wire(wire: ResourceWire) -> Result<Self> {
        let fields = wire
            .fields
            .into_iter()
            .map(|(name, version, text)| {
                let value = Value::from_stored(&text);
                Ok((FieldName::new(name)?, FieldState { value, version }))
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            exists: wire.exists,
            state: ResourceState {
                version: wire.version,
                fenced: wire.fenced,
                fields,
            },
        })
    }
}

#[derive(Encode, Decode)]
pub(super) struct ReceiptWire {
    fingerprint: u64,
    sequence: u64,
    versions: Vec<(String, u64)>,
}

impl Stored for StoredReceipt {
    type Wire = ReceiptWire;
    fn to_wire(&self) -> ReceiptWire {
        ReceiptWire {
            fingerprint: self.fingerprint,
            sequence: self.receipt.sequence,
            versions: self
                .receipt
                .versions
                .iter()
                .map(|(resource, version)| (resource.as_str().to_owned(), *version))
                .collect(),
        }
    }
    fn from_wire(wire: ReceiptWire) -> Result<Self> {
        Ok(Self {
            fingerprint: wire.fingerprint,
            receipt: CommitReceipt {
                sequence: wire.sequence,
                versions: wire
                    .versions
                    .into_iter()
                    .map(|(resource, version)| Ok((ResourceName::new(resource)?, version)))
                    .collect::<Result<_>>()?,
            },
        })
    }
}

#[derive(Encode, Decode)]
pub(super) struct EventWire {
    sequence: u64,
    at: i64,
    kind: KindWire,
}

#[derive(Encode, Decode)]
enum KindWire {
    Acquired {
        resource: String,
        owner: String,
        token: u64,
        expires_at: i64,
        ttl: u64,
        created: Option<u64>,
    },
    Released {
        resource: String,
        owner: String,
        token: u64,
    },
    Revoked {
        resource: String,
        mark: u64,
    },
    Committed {
        agent: String,
        id: Option<u128>,
        fences: Vec<(String, u64)>,
        changes: Vec<ChangeWire>,
    },
    Imported {
        resource: String,
        mark: Option<u64>,
        version: Option<u64>,
    },
}

#[derive(Encode, Decode)]
struct ChangeWire {
    resource: String,
    version: u64,
    deleted: bool,
    fenced: bool,
    /// Name, and JSON text unless the field was deleted.
    fields: Vec<(String, Option<String>)>,
}

impl Stored for Event {
    type Wire = EventWire;
    fn to_wire(&self) -> EventWire {
        let kind = match &self.kind {
            EventKind::Acquired {
                resource,
                owner,
                token,
                expires_at,
                ttl,
                created,
            } => KindWire::Acquired {
                resource: resource.as_str().to_owned(),
                owner: owner.as_str().to_owned(),
                token: token.get(),
                expires_at: expires_at.as_millis(),
                ttl: ttl.as_millis(),
                created: *created,
            },
            EventKind::Released {
                resource,
                owner,
                token,
            } => KindWire::Released {
                resource: resource.as_str().to_owned(),
                owner: owner.as_str().to_owned(),
                token: token.get(),
            },
            EventKind::Revoked { resource, mark } => KindWire::Revoked {
                resource: resource.as_str().to_owned(),
                mark: mark.get(),
            },
            EventKind::Committed {
                agent,
                id,
                fences,
                changes,
            } => KindWire::Committed {
                agent: agent.as_str().to_owned(),
                id: id.map(CommitId::as_bits),
                fences: fences
                    .iter()
                    .map(|(resource, token)| (resource.as_str().to_owned(), token.get()))
                    .collect(),
                changes: changes.iter().map(change_to_wire).collect(),
            },
            EventKind::Imported {
                resource,
                mark,
                version,
            } => KindWire::Imported {
                resource: resource.as_str().to_owned(),
                mark: mark.map(Token::get),
                version: *version,
            },
        };
        EventWire {
            sequence: self.sequence,
            at: self.at.as_millis(),
            kind,
        }
    }

    fn from_wire(wire: EventWire) -> Result<Self> {
        let kind = match wire.kind {
            KindWire::Acquired {
                resource,
                owner,
                token,
                expires_at,
                ttl,
                created,
            } => EventKind::Acquired {
                resource: ResourceName::new(resource)?,
                owner: OwnerName::new(owner)?,
                token: Token::new(token)?,
                expires_at: Timestamp::from_millis(expires_at),
                ttl: Ttl::from_millis(ttl)?,
                created,
            },
            KindWire::Released {
                resource,
                owner,
                token,
            } => EventKind::Released {
                resource: ResourceName::new(resource)?,
                owner: OwnerName::new(owner)?,
                token: Token::new(token)?,
            },
            KindWire::Revoked { resource, mark } => EventKind::Revoked {
                resource: ResourceName::new(resource)?,
                mark: Token::new(mark)?,
            },
            KindWire::Committed {
                agent,
                id,
                fences,
                changes,
            } => EventKind::Committed {
                agent: AgentName::new(agent)?,
                id: id.map(CommitId::from_bits),
                fences: fences
                    .into_iter()
                    .map(|(resource, token)| Ok((ResourceName::new(resource)?, Token::new(token)?)))
                    .collect::<Result<_>>()?,
                changes: changes
                    .into_iter()
                    .map(change_from_wire)
                    .collect::<Result<_>>()?,
            },
            KindWire::Imported {
                resource,
                mark,
                version,
            } => EventKind::Imported {
                resource: ResourceName::new(resource)?,
                mark: mark.map(Token::new).transpose()?,
                version,
            },
        };
        Ok(Self {
            sequence: wire.sequence,
            at: Timestamp::from_millis(wire.at),
            kind,
        })
    }
}

fn change_to_wire(change: &ResourceChange) -> ChangeWire {
    ChangeWire {
        resource: change.resource.as_str().to_owned(),
        version: change.version,
        deleted: change.deleted,
        fenced: change.fenced,
        fields: change
            .fields
            .iter()
            .map(|(name, value)| {
                let text = value.as_ref().map(|value| value.as_str().to_owned());
                (name.as_str().to_owned(), text)
            })
            .collect(),
    }
}

fn change_from_wire(wire: ChangeWire) -> Result<ResourceChange> {
    Ok(ResourceChange {
        resource: ResourceName::new(wire.resource)?,
        version: wire.version,
        deleted: wire.deleted,
        fenced: wire.fenced,
        fields: wire
            .fields
            .into_iter()
            .map(|(name, text)| {
                let value = text.map(|text| Value::from_stored(&text));
                Ok((FieldName::new(name)?, value))
            })
            .collect::<Result<_>>()?,
    })
}

/// What `meta` says of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoreMeta {
    /// Tells stores apart: random, made with the store.
    pub(super) id: u128,
}

impl Stored for StoreMeta {
    type Wire = u128;
    fn to_wire(&self) -> u128 {
        self.id
    }
    fn from_wire(id: u128) -> Result<Self> {
        Ok(Self { id })
    }
}

/// Where the store's time line is tied to the machine's monotonic clock
/// (R11).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClockAnchor {
    /// Names the boot of the machine that `monotonic` belongs to.
    pub(super) boot: String,
    /// The monotonic clock, in milliseconds, when store time was `store`.
    pub(super) monotonic: u64,
    /// Store time then.
    pub(super) store: Timestamp,
    /// Store time is below this in the present boot: where the next boot's
    /// begins unless the wall clock is later.
    pub(super) ceiling: Timestamp,
}

impl Stored for ClockAnchor {
    type Wire = (String, u64, i64, i64);
    fn to_wire(&self) -> Self::Wire {
        (
            self.boot.clone(),
            self.monotonic,
            self.store.as_millis(),
            self.ceiling.as_millis(),
        )
    }
    fn from_wire((boot, monotonic, store, ceiling): Self::Wire) -> Result<Self> {
        Ok(Self {
            boot,
            monotonic,
            store: Timestamp::from_millis(store),
            ceiling: Timestamp::from_millis(ceiling),
        })
    }
}

/// What the row holds that a table begins with: nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start;

impl Stored for Start {
    type Wire = ();
    fn to_wire(&self) {}
    fn from_wire((): ()) -> Result<Self> {
        Ok(Self)
    }
}

#[cfg(test)]
mod tests;
