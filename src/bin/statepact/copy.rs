//! `copy`.

use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value as Json, json};
use statepact::backend::{Merge, SharedBackend};
use statepact::copy::{Copied, Copier, Following};

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
    if from.absolute()? == to.absolute()? || same_file(&from, &to) {
        return Err(Failure::argument("TO", "it is the same store as FROM"));
    }
    let from = open_at(from, global, IfAbsent::Refuse).await?;
    let copying = Copying {
        from,
        merge: match args.merge {
            MergeArg::Refuse => Merge::Refuse,
            MergeArg::Newer => Merge::Newer,
        },
        output,
    };
    let mut signals = Signals::listen()?;
    if let Some(draft) = Draft::of(&to)? {
        let store = open_at(draft.location(), global, IfAbsent::Create).await?;
        let done = match copying.begin(store, &mut signals).await? {
            Ok(following) => following.finish().await?,
            Err(signal) => return Ok(interrupted(signal)),
        };
        draft.appear()?;
        if !args.follow {
            return said(done, output);
        }
    }
    let store = open_at(to, global, IfAbsent::Create).await?;
    let mut following = match copying.begin(store, &mut signals).await? {
        Ok(following) => following,
        Err(signal) => return Ok(interrupted(signal)),
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
    said(following.finish().await?, output)
}

fn said(done: Copied, output: Output) -> Result<ExitCode, Failure> {
    output.say(&object(done), || format!("copied {}", text(done)))?;
    Ok(ExitCode::SUCCESS)
}

struct Copying {
    from: SharedBackend,
    merge: Merge,
    output: Output,
}

impl Copying {
    /// Copies everything, with progress for a person; the signal that
    /// interrupted it.
    async fn begin(
        &self,
        to: SharedBackend,
        signals: &mut Signals,
    ) -> Result<Result<Following, Signal>, Failure> {
        let bar = if !self.output.json && std::io::stderr().is_terminal() {
            indicatif::ProgressBar::new_spinner()
        } else {
            indicatif::ProgressBar::hidden()
        };
        bar.enable_steady_tick(Duration::from_millis(100));
        let so_far = Arc::new(Mutex::new(Copied::default()));
        let copier = Copier::new(self.from.clone(), to)
            .merge(self.merge)
            .progress({
                let (bar, so_far) = (bar.clone(), so_far.clone());
                move |copied| {
                    bar.set_message(text(copied));
                    *so_far.lock().unwrap_or_else(PoisonError::into_inner) = copied;
                }
            });
        let begun = tokio::select! {
            biased;
            signal = signals.ending() => Err(signal),
            begun = copier.begin() => Ok(begun?),
        };
        bar.finish_and_clear();
        if begun.is_err() {
            let so_far = *so_far.lock().unwrap_or_else(PoisonError::into_inner);
            self.output.note(&format!(
                "interrupted after {}: run it again to go on",
                text(so_far)
            ));
        }
        Ok(begun)
    }
}

/// A new file on its way: half a copy lacks marks, and must not be taken for a
/// store, which would issue their tokens again (R1).
struct Draft {
    path: PathBuf,
    becomes: PathBuf,
}

impl Draft {
    /// `None` when there is a store already, or it is on a server.
    fn of(to: &Location) -> Result<Option<Self>, Failure> {
        let Location::Path(path, argument) = to else {
            return Ok(None);
        };
        if std::fs::symlink_metadata(path).is_ok() {
            return Ok(None);
        }
        let Some(name) = path.file_name() else {
            return Err(Failure::argument(argument, "it does not name a file"));
        };
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(".copying");
        Ok(Some(Self {
            path: path.with_file_name(hidden),
            becomes: path.clone(),
        }))
    }

    fn location(&self) -> Location {
        Location::Path(self.path.clone(), "TO")
    }

    /// Gives the finished copy its name, unless something has it by now.
    fn appear(&self) -> Result<(), Failure> {
        std::fs::hard_link(&self.path, &self.becomes)
            .and_then(|()| std::fs::remove_file(&self.path))
            .and_then(|()| {
                let folder = self.becomes.parent().filter(|f| !f.as_os_str().is_empty());
                std::fs::File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
            })
            .map_err(|error| {
                Failure::storage(format!(
                    "the copy is whole, but `{}` could not become `{}`: {error}",
                    self.path.display(),
                    self.becomes.display()
                ))
            })
    }
}

fn same_file(one: &Location, other: &Location) -> bool {
    let file = |location: &Location| match location {
        Location::Path(path, _) => std::fs::metadata(path)
            .map(|found| (found.dev(), found.ino()))
            .ok(),
        Location::Url(_) => None,
    };
    file(one).is_some() && file(one) == file(other)
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
