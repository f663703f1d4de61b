//! Which store, and opening it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use statepact::backend::SharedBackend;
use statepact::backend::embedded::EmbeddedOptions;

use crate::args::Global;
use crate::exit::Failure;
use crate::output::Output;

/// The store in the current folder when none is named.
pub(crate) const DEFAULT_STORE: &str = "statepact.redb";

/// The argument that names it.
const STORE: &str = "--store";

/// Whether a command makes the store that is not there yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfAbsent {
    Create,
    Refuse,
}

/// Where the store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Location {
    /// A path, and the argument that named it.
    Path(PathBuf, &'static str),
    Url(String),
}

impl Location {
    pub(crate) fn of(global: &Global) -> Result<Self, Failure> {
        match &global.store {
            None => Ok(Self::Path(DEFAULT_STORE.into(), STORE)),
            Some(name) => Self::parse(name, STORE),
        }
    }

    pub(crate) fn parse(name: &OsStr, argument: &'static str) -> Result<Self, Failure> {
        if name.is_empty() || name == "file:" || name == "file://" {
            return Err(Failure::argument(
                argument,
                format!("it is empty: give a path such as ./{DEFAULT_STORE}"),
            ));
        }
        let Some(text) = name.to_str() else {
            return Ok(Self::Path(name.into(), argument));
        };
        if text.starts_with("memory:") {
            return Err(Failure::argument(
                argument,
                format!(
                    "`memory:` lives inside one process and would end with this command: \
                     give a path such as ./{DEFAULT_STORE}"
                ),
            ));
        }
        if let Some(path) = text.strip_prefix("file:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return Ok(Self::Path(path.into(), argument));
        }
        if text.contains("://") || statepact::backend::names_server(text) {
            return Ok(Self::Url(text.to_owned()));
        }
        Ok(Self::Path(name.into(), argument))
    }

    /// The store's name for a process that may run in another folder.
    pub(crate) fn absolute(&self) -> Result<OsString, Failure> {
        match self {
            Self::Url(url) => Ok(url.into()),
            Self::Path(path, _) => std::path::absolute(path)
                .map(PathBuf::into_os_string)
                .map_err(|error| {
                    Failure::storage(format!(
                        "cannot tell the absolute path of store {}: {error}",
                        show(path)
                    ))
                }),
        }
    }
}

fn show(path: &Path) -> String {
    format!("`{}`", crate::output::printable(&path.to_string_lossy()))
}

/// Opens the store that the command line names.
pub(crate) async fn open(global: &Global, if_absent: IfAbsent) -> Result<SharedBackend, Failure> {
    open_at(Location::of(global)?, global, if_absent).await
}

pub(crate) async fn open_at(
    location: Location,
    global: &Global,
    if_absent: IfAbsent,
) -> Result<SharedBackend, Failure> {
    match location {
        Location::Url(url) => {
            let backend = statepact::backend::open(&url).await?;
            let output = Output { json: global.json };
            for warning in backend.warnings() {
                output.note(&format!("warning: {warning}"));
            }
            Ok(backend)
        }
        Location::Path(path, argument) => {
            look_before_opening(&path, argument, if_absent)?;
            let mut options = EmbeddedOptions::new().create(if_absent == IfAbsent::Create);
            if let Some(timeout) = global.busy_timeout {
                options = options.busy_timeout(timeout);
            }
            Ok(Arc::new(options.open(&path).await?))
        }
    }
}

/// Refuses what a person should hear about in the command line's own words.
fn look_before_opening(
    path: &Path,
    argument: &'static str,
    if_absent: IfAbsent,
) -> Result<(), Failure> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(Failure::argument(
            argument,
            format!(
                "{} is a folder: name a file in it, such as {}",
                show(path),
                show(&path.join(DEFAULT_STORE))
            ),
        )),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = match path.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder,
                _ => Path::new("."),
            };
            if !folder.is_dir() {
                return Err(Failure::storage(format!(
                    "folder {} of store {} does not exist: create it with mkdir -p",
                    show(folder),
                    show(path)
                ))
                .with("path", path.to_string_lossy()));
            }
            match if_absent {
                IfAbsent::Create => Ok(()),
                IfAbsent::Refuse => Err(Failure::storage(format!(
                    "store {} does not exist: {}create it with `statepact set`, `lease acquire` \
                     or `run`",
                    show(path),
                    if argument == STORE {
                        "name another with --store or STATEPACT_STORE, or "
                    } else {
                        ""
                    }
                ))
                .with("path", path.to_string_lossy())),
            }
        }
        Err(error) => Err(Failure::storage(format!(
            "cannot look at store {}: {error}",
            show(path)
        ))
        .with("path", path.to_string_lossy())),
    }
}
