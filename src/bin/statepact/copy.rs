//! `copy`.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value as Json, json};
use statepact::backend::Merge;
use statepact::copy::{Copied, Copier};

use crate::args::{CopyArgs, Global, MergeArg};
use crate::exit::Failure;
use crate::output::Output;
use crate::signals::Signals;
use crate::store::{IfAbsent, Location, open_at};

pub(crate) async fn copy(
    global: &Global,
    args: &CopyArgs,
    output: Output,
) -> Result<ExitCode, Failure> {
    let (from, to) = (
        Location::parse(&args.from, "FROM")?,
        Location::parse(&args.to, "TO")?,
    );
    if from.absolute()? == to.absolute()? {
        return Err(Failure::argument("TO", "it is the same store as FROM"));
    }
    let from = open_at(from, global, IfAbsent::Refuse).await?;
    let to = open_at(to, global, IfAbsent::Create).await?;
    let mut signals = Signals::listen()?;
    let bar = if !output.json && std::io::stderr().is_terminal() {
        indicatif::ProgressBar::new_spinner()
    } else {
        indicatif::ProgressBar::hidden()
    };
    bar.enable_steady_tick(Duration::from_millis(100));
    let so_far = Arc::new(Mutex::new(Copied::default()));
    let copier = Copier::new(from, to)
        .merge(match args.merge {
            MergeArg::Refuse => Merge::Refuse,
            MergeArg::Newer => Merge::Newer,
        })
        .progress({
            let (bar, so_far) = (bar.clone(), so_far.clone());
            move |copied| {
                bar.set_message(text(copied));
                *so_far.lock().unwrap_or_else(PoisonError::into_inner) = copied;
            }
        });
    let done_so_far = || *so_far.lock().unwrap_or_else(PoisonError::into_inner);
    let begun = tokio::select! {
        biased;
        signal = signals.ending() => Err(signal),
        begun = copier.begin() => Ok(begun?),
    };
    bar.finish_and_clear();
    let mut following = match begun {
        Ok(following) => following,
        Err(signal) => {
            output.note(&format!(
                "interrupted after {}: run it again to go on",
                text(done_so_far())
            ));
            return Ok(interrupted(signal));
        }
    };
    if args.follow {
        if output.json {
            let mut now = object(following.copied());
            if let Json::Object(now) = &mut now {
                now.insert("following".to_owned(), true.into());
            }
            Output::line(&now.to_string())?;
        }
        output.note(&format!(
            "copied {}; following: stop with Ctrl-C when FROM is at rest",
            text(following.copied())
        ));
        tokio::select! {
            biased;
            _ = signals.ending() => {}
            ended = following.follow() => match ended? {},
        }
    }
    let done = following.finish().await?;
    output.say(&object(done), || format!("copied {}", text(done)))?;
    Ok(ExitCode::SUCCESS)
}

fn interrupted(signal: Signal) -> ExitCode {
    ExitCode::from(u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX))
}

fn text(copied: Copied) -> String {
    format!(
        "{} resources ({} changed), {} events",
        copied.resources, copied.changed, copied.events
    )
}

fn object(copied: Copied) -> Json {
    json!({
        "resources": copied.resources,
        "changed": copied.changed,
        "events": copied.events,
    })
}
