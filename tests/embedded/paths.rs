//! Paths that are no store's: each is refused with an error that names it and
//! says what is wrong, and what is there is left as it is (R29).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use statepact::backend::embedded::{Embedded, EmbeddedOptions, redb};
use statepact::{Error, ErrorKind};

use crate::support::{Sample, check, folder, name, request, value};

/// Opens what must not open, twice: the error.
fn refused(path: &Path, options: &EmbeddedOptions) -> Error {
    let first = options.clone().open_blocking(path).unwrap_err();
    let second = options.clone().create(false).open_blocking(path);
    let second = second.unwrap_err();
    if first.to_string() != second.to_string() {
        // Not created either.
        assert_eq!(second.kind(), ErrorKind::Storage, "{second:?}");
    }
    let text = first.to_string();
    let file = path.file_name().map(OsStr::to_string_lossy);
    assert!(
        text.contains(&*file.unwrap_or_default()),
        "the error does not name the file: {text}"
    );
    first
}

fn names_in(folder: &Path) -> Vec<PathBuf> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    names
}

/// What the error says, for a file with these bytes, which stay.
fn refused_bytes(bytes: &[u8]) -> Error {
    let folder = folder();
    let path = folder.path().join("given.redb");
    std::fs::write(&path, bytes).unwrap();
    let error = refused(&path, &EmbeddedOptions::new());
    assert!(
        std::fs::read(&path).unwrap() == bytes,
        "{error}: it changed"
    );
    assert_eq!(names_in(folder.path()), [path], "something was left behind");
    error
}

fn says(error: &Error, kind: ErrorKind, what: &str) {
    assert_eq!(error.kind(), kind, "{error:?}");
    assert!(error.to_string().contains(what), "{error}");
}

#[test]
fn files_that_are_no_store_are_refused_and_left_as_they_are_r29() {
    says(&refused_bytes(b""), ErrorKind::Corrupt, "empty");
    let text = "Dear diary, ".repeat(1000);
    for bytes in [
        &text.as_bytes()[..1],
        &text.as_bytes()[..400],
        text.as_bytes(),
    ] {
        says(&refused_bytes(bytes), ErrorKind::Corrupt, "not a store");
    }
    refused_bytes(&vec![0; 65_536]);
    refused_bytes(&vec![0xFF; 65_536]);
    refused_bytes(b"SQLite format 3\0");
}

#[test]
fn a_truncated_store_is_left_as_it_is_r29() {
    let sample = Sample::new(3);
    let image = std::fs::read(sample.path()).unwrap();
    for len in (0..image.len()).step_by(image.len() / 40) {
        let error = refused_bytes(&image[..len]);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{len} bytes: {error:?}");
    }
}

#[test]
fn another_programs_redb_database_is_refused_and_left_as_it_is_r29() {
    const OTHERS: redb::TableDefinition<'static, &str, u64> = redb::TableDefinition::new("others");
    let folder = folder();
    let path = folder.path().join("others.redb");
    let database = redb::Database::create(&path).unwrap();
    let txn = database.begin_write().unwrap();
    txn.open_table(OTHERS).unwrap().insert("a", 1).unwrap();
    txn.commit().unwrap();

    // While the other program has it, too.
    let error = EmbeddedOptions::new().open_blocking(&path).unwrap_err();
    says(&error, ErrorKind::Busy, "for itself");
    drop(database);

    let before = std::fs::read(&path).unwrap();
    let error = refused(&path, &EmbeddedOptions::new());
    says(&error, ErrorKind::Corrupt, "not a statepact store");
    assert!(std::fs::read(&path).unwrap() == before, "it changed");
}

#[test]
fn what_is_not_a_file_is_refused_without_waiting_r29() {
    let folder = folder();
    let within = folder.path().join("folder.redb");
    std::fs::create_dir(&within).unwrap();
    says(
        &refused(&within, &EmbeddedOptions::new()),
        ErrorKind::InvalidArgument,
        "is not a file",
    );
    let fifo = folder.path().join("fifo.redb");
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    says(
        &refused(&fifo, &EmbeddedOptions::new()),
        ErrorKind::InvalidArgument,
        "is not a file",
    );
    says(
        &refused(Path::new("/dev/null"), &EmbeddedOptions::new()),
        ErrorKind::InvalidArgument,
        "is not a file",
    );
    let socket = folder.path().join("socket.redb");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert_eq!(
        refused(&socket, &EmbeddedOptions::new()).kind(),
        ErrorKind::Storage
    );
    for path in ["/", "..", "."] {
        let error = Embedded::open_blocking(path).unwrap_err();
        says(&error, ErrorKind::InvalidArgument, "is not a file");
    }
    assert_eq!(
        Embedded::open_blocking("").unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    assert_eq!(names_in(folder.path()).len(), 3);
}

#[test]
fn a_path_that_leads_nowhere_is_refused_and_nothing_is_made() {
    let folder = folder();
    let missing = folder.path().join("missing/state.redb");
    says(
        &refused(&missing, &EmbeddedOptions::new()),
        ErrorKind::Storage,
        "folder",
    );
    let file = folder.path().join("file");
    std::fs::write(&file, "text").unwrap();
    let below = file.join("state.redb");
    assert_eq!(
        refused(&below, &EmbeddedOptions::new()).kind(),
        ErrorKind::Storage
    );
    let long = folder.path().join("x".repeat(300));
    assert_eq!(
        refused(&long, &EmbeddedOptions::new()).kind(),
        ErrorKind::Storage
    );
    let zero = folder.path().join("nul\0byte.redb");
    assert!(matches!(
        Embedded::open_blocking(zero).unwrap_err().kind(),
        ErrorKind::Storage | ErrorKind::InvalidArgument
    ));
    let dangling = folder.path().join("dangling.redb");
    std::os::unix::fs::symlink(folder.path().join("nothing"), &dangling).unwrap();
    assert_eq!(
        refused(&dangling, &EmbeddedOptions::new()).kind(),
        ErrorKind::Storage
    );
    let cycle = folder.path().join("cycle.redb");
    std::os::unix::fs::symlink(&cycle, &cycle).unwrap();
    assert_eq!(
        refused(&cycle, &EmbeddedOptions::new()).kind(),
        ErrorKind::Storage
    );
    let absent = folder.path().join("absent.redb");
    let error = EmbeddedOptions::new()
        .create(false)
        .open_blocking(&absent)
        .unwrap_err();
    says(&error, ErrorKind::Storage, "no store at");
    assert_eq!(names_in(folder.path()), [cycle, dangling, file]);
}

/// Runs `work` without a superuser's rights, which pass over permissions.
fn as_a_user<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                let nobody = rustix::process::Uid::from_raw(65_534);
                // Of this thread alone.
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            work()
        });
        thread.join().unwrap()
    })
}

#[test]
fn files_and_folders_that_cannot_be_written_are_refused_and_left_as_they_are() {
    let folder = folder();
    let path = folder.path().join("state.redb");
    let store = Embedded::open_blocking(&path).unwrap();
    store.commit_blocking(&request(&[name("here")], 7)).unwrap();
    drop(store);
    let before = std::fs::read(&path).unwrap();
    let set = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let new = folder.path().join("new.redb");

    set(folder.path(), 0o755);
    set(&path, 0o444);
    as_a_user(|| {
        std::fs::write(folder.path().join("probe"), "").unwrap_err();
        let error = refused(&path, &EmbeddedOptions::new());
        says(&error, ErrorKind::Storage, "writable");
    });
    set(&path, 0o000);
    as_a_user(|| {
        let error = refused(&path, &EmbeddedOptions::new());
        says(&error, ErrorKind::Storage, "writable");
    });
    // Nothing can be made in the folder, but a store that is there works.
    set(folder.path(), 0o555);
    set(&path, 0o666);
    as_a_user(|| {
        let error = refused(&new, &EmbeddedOptions::new());
        assert_eq!(error.kind(), ErrorKind::Storage, "{error:?}");
        let store = Embedded::open_blocking(&path).unwrap();
        assert_eq!(value(&store, "here").unwrap(), Some(7));
    });
    set(folder.path(), 0o000);
    as_a_user(|| {
        let error = refused(&path, &EmbeddedOptions::new());
        assert_eq!(error.kind(), ErrorKind::Storage, "{error:?}");
    });
    set(folder.path(), 0o755);
    assert_eq!(names_in(folder.path()), std::slice::from_ref(&path));
    assert_eq!(std::fs::read(&path).unwrap().len(), before.len());
    let store = Embedded::open_blocking(&path).unwrap();
    assert_eq!(value(&store, "here").unwrap(), Some(7));
}

#[test]
fn unusual_names_and_links_work() {
    let folder = folder();
    let names: [&[u8]; 5] = [
        b"with spaces and 'quotes' \"double\".redb",
        "с\u{301}лово-日本語-🦀.redb".as_bytes(),
        b"not \xFF utf-8 \xC3.redb",
        b"new\nline.redb",
        b"-dash",
    ];
    for bytes in names {
        let path = folder.path().join(OsStr::from_bytes(bytes));
        let store = Embedded::open_blocking(&path).unwrap();
        store.commit_blocking(&request(&[name("a")], 1)).unwrap();
        drop(store);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let through = Embedded::open_blocking(&link).unwrap();
        let direct = Embedded::open_blocking(&path).unwrap();
        through.commit_blocking(&request(&[name("a")], 2)).unwrap();
        assert_eq!(value(&direct, "a").unwrap(), Some(2));
        check(&through).unwrap();
        std::fs::remove_file(&link).unwrap();
        // Its errors can be shown.
        std::fs::rename(&path, folder.path().join("away")).unwrap();
        let error = direct.read_blocking(&[name("a")]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
        std::fs::rename(folder.path().join("away"), &path).unwrap();
        assert_eq!(value(&direct, "a").unwrap(), Some(2));
    }
    assert_eq!(names_in(folder.path()).len(), names.len());
}
