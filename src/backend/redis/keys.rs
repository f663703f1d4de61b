//! The names of keys: `docs/redis-keys.md`.

use crate::error::{Error, Result};

/// The prefix of a store that was given none.
pub(super) const DEFAULT_PREFIX: &str = "statepact";
const MAX_PREFIX_BYTES: usize = 512;

/// The keys of one store.
///
/// All of them begin with the prefix as a hash tag, `{prefix}:`, which puts
/// them in one slot of a cluster: a script may touch them all. Only the first
/// braces of a key make a hash tag, so that those in the names of resources
/// mean nothing and stay as they are; those in the prefix are percent-encoded.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    tag: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Result<Self> {
        if prefix.is_empty() || prefix.len() > MAX_PREFIX_BYTES {
            return Err(Error::invalid(
                "prefix",
                format!(
                    "{} bytes; a prefix has 1 to {MAX_PREFIX_BYTES}",
                    prefix.len()
                ),
            ));
        }
        if let Some(control) = prefix.chars().find(|c| c.is_control()) {
            return Err(Error::invalid(
                "prefix",
                format!(
                    "it contains the control character U+{:04X}; a prefix has none",
                    u32::from(control)
                ),
            ));
        }
        let encoded = prefix
            .replace('%', "%25")
            .replace('{', "%7B")
            .replace('}', "%7D");
        Ok(Self {
            tag: format!("{{{encoded}}}"),
        })
    }

    /// What every script is given, in the order of `prelude.lua`.
    pub(super) fn shared(&self) -> Vec<String> {
        ["meta", "log", "ids", "receipts", "names", "known"]
            .map(|name| self.named(name))
            .to_vec()
    }

    pub(super) fn named(&self, name: &str) -> String {
        format!("{}:{name}", self.tag)
    }

    pub(super) fn lease(&self, resource: &str) -> String {
        format!("{}:lease:{resource}", self.tag)
    }

    pub(super) fn fence(&self, resource: &str) -> String {
        format!("{}:fence:{resource}", self.tag)
    }

    pub(super) fn state(&self, resource: &str) -> String {
        format!("{}:state:{resource}", self.tag)
    }

    /// Where releases are told of.
    pub(super) fn channel(&self) -> String {
        self.named("released")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_hash_tag_whatever_it_contains() {
        for (prefix, tag) in [
            ("statepact", "{statepact}"),
            ("a:b", "{a:b}"),
            ("{a}", "{%7Ba%7D}"),
            ("}", "{%7D}"),
            ("%7D", "{%257D}"),
        ] {
            let keys = Keys::new(prefix).unwrap();
            assert_eq!(keys.lease("}{x"), format!("{tag}:lease:}}{{x"));
        }
    }

    #[test]
    fn a_prefix_without_a_name_for_a_slot_is_refused() {
        for prefix in ["", "a\nb", &"x".repeat(513)] {
            assert!(matches!(
                Keys::new(prefix),
                Err(Error::InvalidArgument {
                    argument: "prefix",
                    ..
                })
            ));
        }
    }
}
