//! Everything that is printed: objects of JSON, tables, times, errors.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::{Value as Json, json};
use statepact::backend::{LeaseState, LeaseStatus};
use statepact::{Lease, Timestamp};

use crate::exit::{Failure, Report};

pub(crate) const ERROR: Style = AnsiColor::Red.on_default().bold();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
pub(crate) const NAME: Style = AnsiColor::Cyan.on_default();
pub(crate) const FAINT: Style = Style::new().dimmed();

/// Where results go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    /// Whether they are for a program.
    pub(crate) json: bool,
}

impl Output {
    /// Prints a result: the object for a program, the text for a person.
    pub(crate) fn say(
        self,
        object: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        Self::line(&if self.json {
            json_line(object)?
        } else {
            text()
        })
    }

    /// Prints a line.
    pub(crate) fn line(text: &str) -> Result<(), Failure> {
        let mut stdout = anstream::stdout().lock();
        writeln!(stdout, "{text}")
            .and_then(|()| stdout.flush())
            .map_err(|error| Failure::output(&error))
    }

    /// Prints an error on standard error. Nothing can be done when that fails.
    pub(crate) fn error(self, report: &Report) {
        let mut stderr = anstream::stderr().lock();
        let _ = if self.json {
            let mut error = report.detail.clone();
            error.insert("kind".to_owned(), report.kind.into());
            error.insert("message".to_owned(), report.message.as_str().into());
            writeln!(stderr, "{}", json!({ "error": error }))
        } else {
            writeln!(
                stderr,
                "{ERROR}statepact:{ERROR:#} {}",
                printable(&report.message)
            )
        };
        let _ = stderr.flush();
    }

    /// Warns of something that is no failure, on standard error.
    pub(crate) fn warn(self, text: &str) {
        if self.json {
            let warning = json!({ "warning": { "message": text } });
            let _ = writeln!(anstream::stderr().lock(), "{warning}");
        } else {
            self.note(text);
        }
    }

    /// Tells a person something beside the result.
    pub(crate) fn note(self, text: &str) {
        if !self.json {
            let _ = writeln!(anstream::stderr().lock(), "statepact: {text}");
        }
    }

    /// Whether a person reads the result on a terminal.
    pub(crate) fn is_terminal(self) -> bool {
        !self.json && std::io::stdout().is_terminal()
    }
}

/// An object on one line.
pub(crate) fn json_line(object: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(object).map_err(|error| Failure::output(&error.into()))
}

/// The text without the characters that steer a terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// A table with a heading; columns as wide as the terminal allows, or as their
/// content needs where there is none.
pub(crate) fn table<'a>(
    heading: &[&str],
    rows: impl IntoIterator<Item = &'a Vec<String>>,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(heading);
    for row in rows {
        table.add_row(row);
    }
    let text = table.trim_fmt();
    // The heading is the first line: styled here, so that one place decides
    // about colour.
    match text.split_once('\n') {
        Some((heading, rows)) => format!("{FAINT}{heading}{FAINT:#}\n{rows}"),
        None => format!("{FAINT}{text}{FAINT:#}"),
    }
}

/// A moment in local time, for a person.
pub(crate) fn local_time(at: Timestamp) -> String {
    match jiff::Timestamp::from_millisecond(at.as_millis()) {
        Ok(moment) => moment
            .to_zoned_datetime(jiff::tz::TimeZone::system())
            .strftime("%Y-%m-%d %H:%M:%S")
            .to_string(),
        Err(_) => at.to_string(),
    }
}

/// A duration, for a person: whole seconds from ten seconds on.
pub(crate) fn human_duration(duration: Duration) -> String {
    let shown = if duration >= Duration::from_secs(10) {
        Duration::from_secs(duration.as_secs())
    } else {
        Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    };
    jiff::fmt::friendly::SpanPrinter::new().unsigned_duration_to_string(&shown)
}

/// Seconds as a number: whole where they are.
pub(crate) fn seconds(duration: Duration) -> Json {
    if duration.subsec_millis() == 0 {
        duration.as_secs().into()
    } else {
        duration.as_secs_f64().into()
    }
}

/// A lease, with the API's names.
pub(crate) fn lease_object(lease: &Lease) -> Json {
    json!({
        "resource": lease.resource.as_str(),
        "owner": lease.owner.as_str(),
        "token": lease.token.get(),
        "expires_at": expiry(lease),
        "ttl_seconds": seconds(lease.ttl.as_duration()),
    })
}

/// A released lease expires at no moment.
fn expiry(lease: &Lease) -> Option<String> {
    (lease.expires_at != Timestamp::EPOCH).then(|| lease.expires_at.to_string())
}

/// Adds the mark and the last lease of a resource to an object.
pub(crate) fn add_lease_status(object: &mut Json, status: &LeaseStatus) {
    let lease = status.lease.as_ref();
    let live = lease.filter(|(_, state)| *state == LeaseState::Live);
    let Json::Object(object) = object else { return };
    let mut put = |key: &str, value: Json| object.insert(key.to_owned(), value);
    put("mark", json!(status.mark.map(statepact::Token::get)));
    put("lease_state", state_name(status).into());
    put("owner", json!(lease.map(|(lease, _)| lease.owner.as_str())));
    put("token", json!(lease.map(|(lease, _)| lease.token.get())));
    put(
        "expires_at",
        json!(lease.and_then(|(lease, _)| expiry(lease))),
    );
    put(
        "ttl_seconds",
        json!(lease.map(|(lease, _)| seconds(lease.ttl.as_duration()))),
    );
    put(
        "remaining_seconds",
        json!(live.map(|(lease, _)| seconds(lease.expires_at.since(status.now)))),
    );
}

/// The state of the last lease, or `none` if there never was one.
pub(crate) fn state_name(status: &LeaseStatus) -> &'static str {
    status
        .lease
        .as_ref()
        .map_or("none", |(_, state)| state.as_str())
}
