//! Names and limits (R27), and the state of a resource as a reader sees it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The longest name, in bytes (R27).
pub const MAX_NAME_BYTES: usize = 512;
/// The largest value of one field as JSON text, in bytes: 16 MiB.
pub const MAX_VALUE_BYTES: usize = 16 << 20;
/// The largest state of one resource, as the sum of its names and values, in
/// bytes: 64 MiB.
pub const MAX_STATE_BYTES: usize = 64 << 20;
/// The largest commit, as the sum of the names and values that it writes, in
/// bytes: 64 MiB.
pub const MAX_COMMIT_BYTES: usize = 64 << 20;
/// How deep a JSON value may nest: what `serde_json` reads back.
pub const MAX_VALUE_DEPTH: usize = 127;
/// How many resources, fences or leases one call may name.
pub const MAX_RESOURCES_PER_CALL: usize = 1024;

fn check_name(argument: &'static str, name: &str) -> Result<()> {
    let shown = || {
        let short: String = name.chars().take(40).collect();
        if short.len() == name.len() {
            format!("{short:?}")
        } else {
            format!("{:?}", short + "…")
        }
    };
    if name.is_empty() {
        return Err(Error::invalid(
            argument,
            format!("it is empty; a name has 1 to {MAX_NAME_BYTES} bytes"),
        ));
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(Error::invalid(
            argument,
            format!(
                "{} has {} bytes; a name has 1 to {MAX_NAME_BYTES}",
                shown(),
                name.len()
            ),
        ));
    }
    if let Some(control) = name.chars().find(|c| c.is_control()) {
        return Err(Error::invalid(
            argument,
            format!(
                "{} contains the control character U+{:04X}; a name has none",
                shown(),
                u32::from(control)
            ),
        ));
    }
    Ok(())
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $argument:literal) => {
        $(#[$doc])*
        ///
        /// 1 to 512 bytes of UTF-8 without control characters (R27). Cheap to
        /// clone; orders by its bytes.
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `name` against R27.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] when it is empty, longer than 512
            /// bytes or has a control character.
            pub fn new(name: impl AsRef<str>) -> Result<Self> {
                check_name($argument, name.as_ref())?;
                Ok(Self(name.as_ref().into()))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<&str> for $name {
            type Error = Error;
            fn try_from(name: &str) -> Result<Self> {
                Self::new(name)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;
            fn try_from(name: String) -> Result<Self> {
                Self::new(name)
            }
        }

        impl TryFrom<&String> for $name {
            type Error = Error;
            fn try_from(name: &String) -> Result<Self> {
                Self::new(name)
            }
        }

        impl From<&$name> for $name {
            fn from(name: &$name) -> Self {
                name.clone()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.as_ref().to_owned()
            }
        }
    };
}

name_type!(
    /// Names a resource: a thing that can be owned and holds state.
    ResourceName, "resource"
);
name_type!(
    /// Names who holds a lease. Two holders that use one name share a token
    /// (R3), so make it unique to the process.
    OwnerName, "owner"
);
name_type!(
    /// Names who writes: it is recorded in the history with each commit.
    AgentName, "agent"
);
name_type!(
    /// Names a field of a resource's state.
    FieldName, "field"
);

/// How long a lease lasts without renewal: 1 ms to 366 days (R27).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Ttl(u64);

impl Ttl {
    /// 1 ms.
    pub const MIN: Self = Self(1);
    /// 366 days.
    pub const MAX: Self = Self(366 * 86_400_000);

    /// A time to live of `millis` milliseconds.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless it is 1 ms to 366 days.
    pub fn from_millis(millis: u64) -> Result<Self> {
        if (Self::MIN.0..=Self::MAX.0).contains(&millis) {
            Ok(Self(millis))
        } else {
            Err(Error::invalid(
                "ttl",
                format!("{millis} ms is outside 1 ms to 366 days"),
            ))
        }
    }

    /// In milliseconds.
    pub fn as_millis(self) -> u64 {
        self.0
    }

    /// As a [`Duration`].
    pub fn as_duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl TryFrom<Duration> for Ttl {
    type Error = Error;
    fn try_from(ttl: Duration) -> Result<Self> {
        u64::try_from(ttl.as_millis())
            .ok()
            .filter(|millis| (Self::MIN.0..=Self::MAX.0).contains(millis))
            .map(Self)
            .ok_or_else(|| Error::invalid("ttl", format!("{ttl:?} is outside 1 ms to 366 days")))
    }
}

impl TryFrom<u64> for Ttl {
    type Error = Error;
    fn try_from(millis: u64) -> Result<Self> {
        Self::from_millis(millis)
    }
}

impl From<Ttl> for u64 {
    fn from(ttl: Ttl) -> Self {
        ttl.0
    }
}

/// The value of a field: JSON, kept as its text. Cheap to clone.
///
/// ```
/// use statepact::Value;
///
/// let value = Value::encode(&vec![1, 2])?;
/// assert_eq!(value.as_str(), "[1,2]");
/// assert_eq!(value.decode::<Vec<u8>>().unwrap(), vec![1, 2]);
/// # Ok::<_, statepact::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Value(Arc<str>);

impl Value {
    /// Writes `value` as JSON, which has no word for a float that is infinite or
    /// no number: it becomes `null`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when it cannot be written as JSON (a map
    /// with keys that are not text), is over 16 MiB or nests deeper than 127.
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        let text = serde_json::to_string(value)
            .map_err(|error| Error::invalid("value", format!("not JSON: {error}")))?;
        Self::parse(&text)
    }

    /// Takes JSON text, checked and with its insignificant white space gone.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when it is not one JSON value, is over
    /// 16 MiB or nests deeper than 127.
    pub fn parse(text: &str) -> Result<Self> {
        if text.len() > MAX_VALUE_BYTES {
            return Err(Error::invalid(
                "value",
                format!(
                    "{} bytes of JSON; a field holds at most {MAX_VALUE_BYTES}",
                    text.len()
                ),
            ));
        }
        serde_json::from_str::<serde_json::Value>(text).map_err(|error| {
            Error::invalid("value", format!("not JSON, or nested too deep: {error}"))
        })?;
        // The text itself is kept, not what was parsed: a number may have more
        // digits than a parser's number types hold.
        Ok(Self(compact(text).into()))
    }

    /// Text that a store has kept, and whose checksum or column type says that
    /// it is as it was.
    #[cfg(any(test, feature = "embedded", feature = "postgres"))]
    pub(crate) fn from_stored(text: &str) -> Self {
        Self(text.into())
    }

    /// The JSON text, without insignificant white space.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads the value as a `T`.
    ///
    /// # Errors
    /// What `serde_json` says when the value does not fit.
    pub fn decode<T: serde::de::DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }
}

/// JSON without the white space that means nothing.
fn compact(json: &str) -> String {
    let mut in_string = false;
    let mut escaped = false;
    json.chars()
        .filter(|&c| {
            if in_string {
                in_string = escaped || c != '"';
                escaped = !escaped && c == '\\';
                return true;
            }
            in_string = c == '"';
            !matches!(c, ' ' | '\t' | '\n' | '\r')
        })
        .collect()
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One field of a resource: its value, and the resource's version when it was
/// last written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldState {
    /// The value.
    pub value: Value,
    /// The version of the resource whose commit wrote this value.
    pub version: u64,
}

/// What a resource holds, as of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceState {
    /// Counts the commits to this resource, its creation and deletions
    /// included. It goes on counting when the resource is deleted and created
    /// again.
    pub version: u64,
    /// Whether writes to it must carry a fence (R17).
    pub fenced: bool,
    /// The fields.
    pub fields: BTreeMap<FieldName, FieldState>,
}

/// Marks a commit so that it can be sent again without being applied twice
/// (R26): 128 random bits, shown as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct CommitId(u128);

impl CommitId {
    /// A new id.
    pub fn random(random: &dyn crate::random::Random) -> Self {
        Self(u128::from(random.next_u64()) << 64 | u128::from(random.next_u64()))
    }

    /// The id with these bits, for a caller that makes its own.
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// Its bits.
    pub const fn as_bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<CommitId> for String {
    fn from(id: CommitId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for CommitId {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl std::str::FromStr for CommitId {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        if text.len() == 32
            && text.bytes().all(|byte| byte.is_ascii_hexdigit())
            && let Ok(bits) = u128::from_str_radix(text, 16)
        {
            return Ok(Self(bits));
        }
        Err(Error::invalid(
            "commit_id",
            format!("{text:?} is not 32 hexadecimal digits"),
        ))
    }
}

#[cfg(test)]
mod tests;
