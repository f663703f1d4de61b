//! Files that are moved, removed or replaced while they are open: an error of
//! its own kind, no write to the wrong file, nothing lost. A mark read from the
//! wrong file would not fence anybody.

use std::path::{Path, PathBuf};

use statepact::backend::embedded::Embedded;
use statepact::{Backend, ErrorKind, Result};

use crate::support::{check, folder, lease, name, request, runtime, value};

/// Every operation says that the file was replaced, sync or not.
fn all_refuse(store: &Embedded) {
    let writes = request(&[name("a")], 99);
    let runtime = runtime();
    let held = statepact::Lease {
        resource: name("job"),
        owner: "owner".try_into().unwrap(),
        token: 1.try_into().unwrap(),
        expires_at: statepact::Timestamp::EPOCH,
        ttl: crate::support::ttl(),
    };
    let answers: Vec<Result<()>> = vec![
        store.read_blocking(&[name("a")]).map(drop),
        store.commit_blocking(&writes).map(drop),
        lease(store, "job", "other").map(drop),
        store.release_blocking(&held).map(drop),
        store.guard_blocking(&held),
        store.transact_with([], |_| Ok(())),
        store.read_with(|_| Ok(())),
        runtime.block_on(store.read(&[name("a")])).map(drop),
        runtime.block_on(store.commit(&writes)).map(drop),
        runtime.block_on(store.events(0, 1)).map(drop),
        runtime.block_on(store.list("", None, 1)).map(drop),
        check(store).map(drop),
    ];
    for (n, answer) in answers.into_iter().enumerate() {
        let error = answer.expect_err(&format!("answer {n}"));
        assert_eq!(error.kind(), ErrorKind::Storage, "answer {n}: {error:?}");
        assert!(error.to_string().contains("replaced"), "{error}");
    }
}

fn store(folder: &Path, file: &str, number: u64) -> (PathBuf, Embedded) {
    let path = folder.join(file);
    let store = Embedded::open_blocking(&path).unwrap();
    store
        .commit_blocking(&request(&[name("a")], number))
        .unwrap();
    (path, store)
}

#[test]
fn stores_that_change_places_while_open_are_refused_until_they_are_back() {
    let folder = folder();
    let (a, in_a) = store(folder.path(), "a.redb", 1);
    let (b, in_b) = store(folder.path(), "b.redb", 2);
    let swap = || {
        let by = folder.path().join("by");
        std::fs::rename(&a, &by).unwrap();
        std::fs::rename(&b, &a).unwrap();
        std::fs::rename(&by, &b).unwrap();
    };
    swap();
    all_refuse(&in_a);
    all_refuse(&in_b);
    // Opened again, each path is what is there now.
    let now_a = Embedded::open_blocking(&a).unwrap();
    assert_eq!(value(&now_a, "a").unwrap(), Some(2));
    now_a.commit_blocking(&request(&[name("a")], 3)).unwrap();
    drop(now_a);
    swap();
    assert_eq!(value(&in_a, "a").unwrap(), Some(1));
    assert_eq!(value(&in_b, "a").unwrap(), Some(3));
    in_a.commit_blocking(&request(&[name("a")], 4)).unwrap();
    check(&in_a).unwrap();
    check(&in_b).unwrap();
}

#[test]
fn a_store_that_is_deleted_while_open_is_not_made_anew() {
    let folder = folder();
    let (path, store) = store(folder.path(), "state.redb", 1);
    let kept = folder.path().join("kept");
    std::fs::hard_link(&path, &kept).unwrap();
    std::fs::remove_file(&path).unwrap();
    all_refuse(&store);
    assert!(!path.exists());
    // The same file under its name again: nothing was lost.
    std::fs::rename(&kept, &path).unwrap();
    assert_eq!(value(&store, "a").unwrap(), Some(1));
    store.commit_blocking(&request(&[name("a")], 2)).unwrap();
    drop(store);
    let store = Embedded::open_blocking(&path).unwrap();
    assert_eq!(value(&store, "a").unwrap(), Some(2));
}

#[test]
fn a_store_that_is_replaced_by_a_copy_while_open_is_refused() {
    let folder = folder();
    let (path, store) = store(folder.path(), "state.redb", 1);
    let backup = folder.path().join("backup");
    // A copy of a store that is open, as a backup program makes it.
    std::fs::copy(&path, &backup).unwrap();
    store.commit_blocking(&request(&[name("a")], 2)).unwrap();
    std::fs::rename(&backup, &path).unwrap();
    let before = std::fs::read(&path).unwrap();
    all_refuse(&store);
    drop(store);
    assert!(
        std::fs::read(&path).unwrap() == before,
        "the copy was written to"
    );
    let store = Embedded::open_blocking(&path).unwrap();
    assert_eq!(value(&store, "a").unwrap(), Some(1));
    check(&store).unwrap();
}

#[test]
fn a_store_whose_folder_is_renamed_while_open_is_refused_until_it_is_back() {
    let folder = folder();
    let within = folder.path().join("within");
    std::fs::create_dir(&within).unwrap();
    let (_, store) = store(&within, "state.redb", 1);
    let away = folder.path().join("away");
    std::fs::rename(&within, &away).unwrap();
    all_refuse(&store);
    std::fs::rename(&away, &within).unwrap();
    assert_eq!(value(&store, "a").unwrap(), Some(1));
}

/// R29: never a new store where one was.
#[test]
fn a_store_that_is_emptied_while_open_is_corrupt_and_stays_empty_r29() {
    let folder = folder();
    let (path, store) = store(folder.path(), "state.redb", 1);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(0).unwrap();
    for _ in 0..2 {
        let write = store.commit_blocking(&request(&[name("a")], 2));
        let kind = write.unwrap_err().kind();
        assert!(
            matches!(kind, ErrorKind::Corrupt | ErrorKind::Storage),
            "{kind}"
        );
        let kind = check(&store).unwrap_err().kind();
        assert!(
            matches!(kind, ErrorKind::Corrupt | ErrorKind::Storage),
            "{kind}"
        );
    }
    drop(store);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    let error = Embedded::open_blocking(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
}

/// `cp backup store` keeps the file and changes what is in it.
#[test]
fn a_store_that_is_overwritten_by_an_older_copy_while_open_is_refused() {
    let folder = folder();
    let (path, open) = store(folder.path(), "a.redb", 1);
    drop(open);
    let backup = folder.path().join("backup");
    std::fs::copy(&path, &backup).unwrap();
    let open = Embedded::open_blocking(&path).unwrap();
    let held = lease(&open, "job", "owner").unwrap();
    open.commit_blocking(&request(&[name("a")], 2)).unwrap();
    std::fs::copy(&backup, &path).unwrap();
    all_refuse(&open);
    assert!(open.renew_blocking(&held, held.ttl).is_err());
    drop(open);
    // Opened again, it is what the copy was: nothing was added to it.
    let again = Embedded::open_blocking(&path).unwrap();
    assert_eq!(value(&again, "a").unwrap(), Some(1));
    let newest = runtime().block_on(again.events(0, 10)).unwrap().newest;
    assert_eq!(newest, 1);
}
