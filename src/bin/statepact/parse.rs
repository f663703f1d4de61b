//! From what people type to what the library takes. Each refusal names the
//! argument, its limit and what to write instead.

use std::ffi::OsStr;
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use jiff::{Span, SpanRelativeTo};
use statepact::{AgentName, Error, FieldName, OwnerName, ResourceName, Token, Ttl, Value};

/// An argument's parser that hears of text that is not UTF-8 as well.
pub(crate) struct Checked<T>(fn(&str) -> Result<T, String>);

impl<T> Clone for Checked<T> {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Checked<T> {
    type Value = T;

    fn parse_ref(
        &self,
        _command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        let parsed = match value.to_str() {
            Some(text) => (self.0)(text),
            None => Err(format!(
                "\"{}\" is not UTF-8; write it in UTF-8, the only encoding of names and values",
                value.as_encoded_bytes().escape_ascii()
            )),
        };
        parsed.map_err(|message| {
            let name = argument.map_or_else(|| "argument".to_owned(), argument_name);
            clap::Error::raw(
                ErrorKind::ValueValidation,
                format!("invalid {name}: {message}"),
            )
        })
    }
}

fn argument_name(argument: &clap::Arg) -> String {
    if let Some(long) = argument.get_long() {
        return format!("--{long}");
    }
    match argument.get_value_names() {
        Some([name, ..]) => name.to_string(),
        _ => argument.get_id().to_string(),
    }
}

/// The library's message without its own name for the argument: the command
/// line's name stands before it already.
fn message(error: Error) -> String {
    match error {
        Error::InvalidArgument { message, .. } => message,
        other => other.to_string(),
    }
}

pub(crate) fn resource() -> Checked<ResourceName> {
    Checked(|text| ResourceName::new(text).map_err(message))
}

pub(crate) fn owner() -> Checked<OwnerName> {
    Checked(|text| OwnerName::new(text).map_err(message))
}

pub(crate) fn agent() -> Checked<AgentName> {
    Checked(|text| AgentName::new(text).map_err(message))
}

pub(crate) fn field() -> Checked<FieldName> {
    Checked(|text| FieldName::new(text).map_err(message))
}

pub(crate) fn prefix() -> Checked<String> {
    Checked(|text| Ok(text.to_owned()))
}

pub(crate) fn token() -> Checked<Token> {
    Checked(|text| {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!(
                "{text:?} is not a token: a whole number from 1 to {}",
                Token::MAX
            ));
        }
        text.parse::<u64>()
            .map_err(|_| format!("{text} is outside 1 to {}", Token::MAX))
            .and_then(|number| Token::new(number).map_err(message))
    })
}

pub(crate) fn version() -> Checked<u64> {
    Checked(|text| {
        text.parse()
            .map_err(|_| format!("{text:?} is not a whole number from 0 to {}", u64::MAX))
    })
}

const TTL_LIMIT: &str = "1 ms to 366 days, written like 30s, 5m, 1h30m or 250ms";

pub(crate) fn ttl() -> Checked<Ttl> {
    Checked(|text| {
        let duration = parse_duration(text, TTL_LIMIT)?;
        Ttl::try_from(duration)
            .map_err(|_| format!("{text:?} is out of range: a time to live is {TTL_LIMIT}"))
    })
}

/// The longest time to wait or grant: a century is as good as for ever, and
/// no sum of it overflows.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 86_400);
const DURATION_LIMIT: &str = "0 s to 100 years, written like 30s, 5m, 1h30m or 250ms";

pub(crate) fn duration() -> Checked<Duration> {
    Checked(any_duration)
}

fn any_duration(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text, DURATION_LIMIT)?;
    if duration > LONGEST {
        return Err(format!(
            "{text:?} is out of range: a duration is {DURATION_LIMIT}"
        ));
    }
    Ok(duration)
}

/// How long to wait for a lease.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wait {
    /// `--wait`
    Forever,
    /// `--wait DUR`
    AtMost(Duration),
}

/// What `--wait` without a value stands for.
pub(crate) const FOREVER: &str = "forever";

pub(crate) fn wait() -> Checked<Wait> {
    Checked(|text| {
        if text == FOREVER {
            return Ok(Wait::Forever);
        }
        any_duration(text).map(Wait::AtMost).map_err(|message| {
            format!("{message} (RESOURCE stands before --wait, or write --wait=DUR)")
        })
    })
}

fn parse_duration(text: &str, limit: &str) -> Result<Duration, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "{text:?} has no unit, write {text}s; it is {limit}"
        ));
    }
    let out_of_range = || format!("{text:?} is out of range: it is {limit}");
    let span: Span = text
        .parse()
        .map_err(|_| format!("{text:?} is not a duration: it is {limit}"))?;
    if span.is_negative() {
        return Err(out_of_range());
    }
    // Years and months have no fixed length; the limits need neither.
    let duration = span
        .to_duration(SpanRelativeTo::days_are_24_hours())
        .map_err(|_| out_of_range())?;
    Duration::try_from(duration).map_err(|_| out_of_range())
}

/// `FIELD=JSON`
#[derive(Debug, Clone)]
pub(crate) struct Assignment {
    pub(crate) field: FieldName,
    pub(crate) value: Value,
}

pub(crate) fn assignment() -> Checked<Assignment> {
    Checked(|text| {
        let (field, value) = text.split_once('=').ok_or_else(|| {
            format!("{text:?} has no `=`: write FIELD=JSON, such as count=3 or name='\"Ada\"'")
        })?;
        let field = FieldName::new(field)
            .map_err(|error| format!("the field name before `=`: {}", message(error)))?;
        let value = Value::parse(value).map_err(|error| {
            let quoted = serde_json::Value::from(value).to_string();
            let hint = if value.len() <= 60 && value.starts_with(char::is_alphabetic) {
                format!("; a string needs quotes: {field}='{quoted}'")
            } else {
                String::new()
            };
            format!("the value of `{field}`: {}{hint}", message(error))
        })?;
        Ok(Assignment { field, value })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, millis) in [
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("250ms", 250),
            ("1.5s", 1_500),
            ("7d", 7 * 86_400_000),
            ("2 minutes", 120_000),
            ("PT30S", 30_000),
        ] {
            assert_eq!(
                any_duration(text),
                Ok(Duration::from_millis(millis)),
                "{text}"
            );
        }
    }

    #[test]
    fn a_duration_out_of_its_limit_is_refused_and_names_it() {
        for text in [
            "",
            "30",
            "0s",
            "-5s",
            "5",
            "soon",
            "10000y",
            "10000 years",
            "367d",
            "1us",
            "-0.5s",
            "99999999999999999999h",
            "1h-30m",
            "๓s",
        ] {
            let refused = (ttl().0)(text).unwrap_err();
            assert!(refused.contains("1 ms to 366 days"), "{text}: {refused}");
            assert!(refused.contains("30s"), "{text}: {refused}");
        }
        assert!((ttl().0)("366d").is_ok());
        assert!((ttl().0)("1ms").is_ok());
    }

    #[test]
    fn tokens_are_whole_numbers_in_their_range() {
        for text in [
            "0",
            "-1",
            "+1",
            "",
            "1.0",
            "1e3",
            "abc",
            "9223372036854775808",
            "18446744073709551616",
        ] {
            let refused = (token().0)(text).unwrap_err();
            assert!(refused.contains("9223372036854775807"), "{text}: {refused}");
        }
        assert_eq!((token().0)("9223372036854775807"), Ok(Token::MAX));
    }

    #[test]
    fn an_assignment_that_is_not_json_says_how_to_quote_it() {
        let refused = (assignment().0)("name=Ada").unwrap_err();
        assert!(refused.contains(r#"name='"Ada"'"#), "{refused}");
        assert!(
            (assignment().0)("count")
                .unwrap_err()
                .contains("FIELD=JSON")
        );
        assert!((assignment().0)("=1").unwrap_err().contains("512"));
        let set = (assignment().0)("a={\"b\": \"c=d\"}").unwrap();
        assert_eq!(set.field.as_str(), "a");
        assert_eq!(set.value.as_str(), r#"{"b":"c=d"}"#);
    }
}
