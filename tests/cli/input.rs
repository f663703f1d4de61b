//! Bad input: each gives an error that names what is wrong and the limit, and
//! loses nothing.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::support::{Ran, Running, World};

/// Arguments, the argument that the error must name, and the limit.
type Bad = (Vec<OsString>, &'static str, &'static str);

fn bad(line: &str, argument: &'static str, limit: &'static str) -> Bad {
    let words = line.split(' ').map(OsString::from).collect();
    (words, argument, limit)
}

fn with(mut of: Bad, place: usize, word: &[u8]) -> Bad {
    of.0[place] = OsStr::from_bytes(word).to_owned();
    of
}

fn refused(all: Vec<Bad>) {
    let world = World::new();
    world.words("set job a=1").expect(0);
    let before = std::fs::read(world.store()).unwrap();
    for (arguments, argument, limit) in all {
        let ran = world.run(&arguments).expect(2);
        let line = ran.error_line();
        assert!(line.contains(argument), "{arguments:?}: {line}");
        assert!(line.contains(limit), "{arguments:?}: {line}");
        let json: Vec<OsString> = ["--json".into()].into_iter().chain(arguments).collect();
        let error = world.run(&json).expect(2).error();
        assert_eq!(error["kind"], "invalid_argument", "{json:?}");
        assert_eq!(error["argument"], argument, "{json:?}");
    }
    assert_eq!(std::fs::read(world.store()).unwrap(), before);
}

#[test]
fn names_that_break_r27() {
    let long = "n".repeat(513);
    let mut all = Vec::new();
    for (word, limit) in [
        (&b""[..], "1 to 512 bytes"),
        (long.as_bytes(), "1 to 512"),
        (b"a\nb", "control"),
        (b"a\x7f", "control"),
        ("a\u{85}b".as_bytes(), "control"),
        (b"a\xff", "UTF-8"),
    ] {
        for (line, place, argument) in [
            ("lease acquire NAME", 2, "RESOURCE"),
            ("lease acquire job --owner NAME", 4, "--owner"),
            ("lease show NAME", 2, "RESOURCE"),
            ("lease revoke NAME", 2, "RESOURCE"),
            ("lease release NAME --owner a --token 1", 2, "RESOURCE"),
            ("run NAME -- true", 1, "RESOURCE"),
            ("fence NAME", 1, "RESOURCE"),
            ("guard NAME --token 1", 1, "RESOURCE"),
            ("get NAME", 1, "RESOURCE"),
            ("get job NAME", 2, "FIELD"),
            ("set NAME a=1", 1, "RESOURCE"),
            ("set job a=2 --agent NAME", 4, "--agent"),
            (
                "set job a=2 --fence 1 --fence-resource NAME",
                6,
                "--fence-resource",
            ),
            ("rm NAME", 1, "RESOURCE"),
            ("rm job NAME", 2, "FIELD"),
            ("log --resource NAME", 2, "--resource"),
        ] {
            all.push(with(bad(line, argument, limit), place, word));
        }
    }
    refused(all);
}

#[test]
fn names_at_their_limits_are_taken() {
    let world = World::new();
    let long = "n".repeat(512);
    for name in [long.as_str(), "é/🦀 %_*[\\{}", "-", " "] {
        world.run(["set", name, "a=1"]).expect(0);
        assert_eq!(world.run(["get", name, "a"]).expect(0).out, "1\n");
    }
}

#[test]
fn times_to_live_that_break_r27() {
    let mut all = Vec::new();
    for ttl in [
        "0s",
        "0",
        "-5s",
        "-1ms",
        "367d",
        "10000y",
        "10000years",
        "30",
        "soon",
        "1us",
        "",
        "99999999999999999999s",
    ] {
        for command in [
            "lease acquire job",
            "run job -- true",
            "lease renew job --owner a --token 1",
        ] {
            let (before, after) = command.split_once(" --").unwrap_or((command, ""));
            let mut words: Vec<OsString> = before.split(' ').map(OsString::from).collect();
            words.extend(["--ttl".into(), ttl.into()]);
            if !after.is_empty() {
                words.extend(format!("--{after}").split(' ').map(OsString::from));
            }
            all.push((words, "--ttl", "1 ms to 366 days"));
        }
    }
    refused(all);
}

#[test]
fn durations_that_are_none() {
    refused(vec![
        bad("run job --grace -1s -- true", "--grace", "100 years"),
        bad("run job --grace 5 -- true", "--grace", "write 5s"),
        bad("run job --wait=never -- true", "--wait", "30s"),
        bad("lease acquire job --wait 10", "--wait", "write 10s"),
        bad("--busy-timeout 1000000h ls", "--busy-timeout", "100 years"),
    ]);
}

#[test]
fn tokens_that_are_none() {
    let mut all = Vec::new();
    for token in [
        "0",
        "-1",
        "9223372036854775808",
        "18446744073709551616",
        "one",
        "",
        "1.0",
        "1e3",
        "0x1",
        "+1",
    ] {
        for (line, place, argument) in [
            ("guard job --token N", 3, "--token"),
            ("lease renew job --owner a --token N", 6, "--token"),
            ("lease release job --owner a --token N", 6, "--token"),
            ("set job a=2 --fence N", 4, "--fence"),
            ("rm job --fence N", 3, "--fence"),
        ] {
            let one = bad(line, argument, "9223372036854775807");
            all.push(with(one, place, token.as_bytes()));
        }
    }
    refused(all);
}

#[test]
fn the_highest_token_is_taken_and_then_none_is_left() {
    let world = World::new();
    world.words("set job a=1").expect(0);
    world
        .words("set job a=1 --fence 9223372036854775807")
        .expect(0);
    let fence = world.words("--json fence job").expect(0).json();
    assert_eq!(fence["mark"].as_u64(), Some(9_223_372_036_854_775_807));
    // R28
    let error = world.words("--json lease acquire job").expect(1).error();
    assert_eq!(error["kind"], "tokens_exhausted");
}

#[test]
fn fields_that_are_not_json() {
    let deep = format!("a={}1{}", "[".repeat(5000), "]".repeat(5000));
    let mut all = Vec::new();
    for (field, limit) in [
        ("a=nojson", "a='\"nojson\"'"),
        ("a=", "not JSON"),
        ("a={", "not JSON"),
        ("a=1 2", "not JSON"),
        ("a=NaN", "not JSON"),
        ("a", "FIELD=JSON"),
        ("=1", "1 to 512 bytes"),
        (deep.as_str(), "nested too deep"),
    ] {
        let one = bad("set job FIELD", "FIELD=JSON", limit);
        all.push(with(one, 2, field.as_bytes()));
    }
    all.push(with(
        bad("set job F", "FIELD=JSON", "UTF-8"),
        2,
        b"a=\"\xff\"",
    ));
    all.push(bad("set job a=1 a=2", "FIELD=JSON", "twice"));
    refused(all);
}

#[test]
fn a_command_line_that_is_none_is_usage() {
    let world = World::new();
    for line in [
        "frobnicate",
        "set",
        "set job",
        "run job",
        "run job --",
        "lease",
        "guard job",
        "ls --frob",
        "get a b c",
        "lease release job",
    ] {
        let ran = world.words(line).expect(2);
        assert_eq!(ran.out, "", "{line}");
        assert!(!ran.err.is_empty(), "{line}");
        let error = world.words(&format!("--json {line}")).expect(2).error();
        assert_eq!(error["kind"], "usage", "{line}");
        let message = error["message"].as_str().unwrap();
        let missing = message.contains("required arguments");
        assert!(!missing || message.contains('<'), "{line}: {message}");
    }
    assert!(!world.store().exists());
}

/// The command's error line on a store, and its status.
fn on(store: &Path, status: i32) -> String {
    let world = World::new();
    let mut lines = Vec::new();
    for command in [
        &["set", "job", "a=1"][..],
        &["ls"],
        &["run", "job", "--", "true"],
    ] {
        let arguments = [OsStr::new("--store"), store.as_os_str()]
            .into_iter()
            .chain(command.iter().map(OsStr::new));
        lines.push(world.run(arguments).expect(status).error_line().to_owned());
    }
    lines.concat()
}

#[test]
fn a_store_that_is_a_folder() {
    let world = World::new();
    let said = on(world.folder.path(), 2);
    assert!(said.contains("is a folder"), "{said}");
}

#[test]
fn a_store_in_a_folder_that_is_missing() {
    let world = World::new();
    let said = on(&world.path("missing/state.redb"), 1);
    assert!(
        said.contains("does not exist") && said.contains("mkdir"),
        "{said}"
    );
    assert!(!world.path("missing").exists());
}

#[test]
fn a_store_that_is_truncated() {
    let world = World::new();
    world.words("set job a=1").expect(0);
    let whole = std::fs::read(world.store()).unwrap();
    for len in [1, 100, 4096, 10_000, whole.len() / 2, whole.len() - 1] {
        std::fs::write(world.store(), &whole[..len]).unwrap();
        let said = on(&world.store(), 7);
        assert!(said.contains("state.redb"), "{len}: {said}");
        assert_eq!(std::fs::read(world.store()).unwrap(), whole[..len], "{len}");
    }
    std::fs::write(world.store(), &whole).unwrap();
    assert_eq!(world.words("get job a").expect(0).out, "1\n");
}

#[test]
fn a_store_in_a_folder_that_is_not_writable() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    let folder = world.path("locked");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o555)).unwrap();
    // Permissions do not stop the superuser; /proc takes nobody's files.
    let superuser = std::fs::write(folder.join("probe"), "").is_ok();
    let store = if superuser {
        Path::new("/proc/state.redb").to_owned()
    } else {
        folder.join("state.redb")
    };
    for command in [&["set", "job", "a=1"][..], &["run", "job", "--", "true"]] {
        let arguments = [OsStr::new("--store"), store.as_os_str()]
            .into_iter()
            .chain(command.iter().map(OsStr::new));
        let ran = world.run(arguments).expect(1);
        let line = ran.error_line();
        assert!(
            line.contains("cannot create") && line.contains("state.redb"),
            "{line}"
        );
    }
}

#[test]
fn a_store_with_spaces_other_letters_and_no_utf_8_in_its_path() {
    for name in [
        OsString::from("my store, zum Glück 東京.redb"),
        OsString::from_vec(b"not utf-8 \xff.redb".to_vec()),
        OsString::from("-dash"),
    ] {
        let world = World::new();
        let store = world.folder.path().join(name);
        let run = |command: &[&str]| {
            let arguments = [OsStr::new("--store"), store.as_os_str()]
                .into_iter()
                .chain(command.iter().map(OsStr::new));
            world.run(arguments)
        };
        run(&["set", "job", "a=1"]).expect(0);
        assert_eq!(run(&["get", "job", "a"]).expect(0).out, "1\n");
        assert!(store.exists());
    }
}

#[test]
fn store_urls_that_are_none() {
    refused(vec![
        bad("--store memory:x ls", "--store", "give a path"),
        bad("--store file: ls", "--store", "give a path"),
        bad("copy memory: other.redb", "FROM", "give a path"),
        bad("copy state.redb memory:", "TO", "give a path"),
        bad("--store memory: ls", "--store", "give a path"),
        bad("--store mysql://host/db ls", "store", "postgres://"),
        bad("--store redis:host set a x=1", "store", "redis://"),
        bad("--store postgres:db set a x=1", "store", "./postgres:db"),
        bad("--store valkey: ls", "store", "valkey://"),
        with(bad("--store X ls", "--store", "give a path"), 1, b""),
    ]);
}

#[test]
fn a_store_url_of_a_file_is_its_path() {
    let world = World::new();
    let url = format!("file://{}", world.path("other.redb").display());
    world.run(["--store", &url, "set", "job", "a=1"]).expect(0);
    assert!(world.path("other.redb").exists());
}

/// Runs a script with a small disk of its own, mounted at `disk`.
fn on_a_small_disk(world: &World, script: &str) -> Ran {
    std::fs::create_dir(world.path("disk")).unwrap();
    let whole = format!("mount -t tmpfs -o size=512k none disk || exit 99\n{script}");
    let superuser = rustix::process::geteuid().is_root();
    let mut shell = std::process::Command::new("unshare");
    shell
        .args(if superuser { &["-m"][..] } else { &["-Urm"] })
        .args(["sh", "-c", &whole, env!("CARGO_BIN_EXE_statepact")])
        .current_dir(world.folder.path())
        .env("STATEPACT_STORE", "disk/state.redb")
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let ran = Running::start(shell).end();
    assert_ne!(ran.status, Some(99), "no disk can be mounted here: {ran:?}");
    ran
}

#[test]
fn a_full_disk_gives_one_clear_line_and_loses_nothing() {
    let world = World::new();
    let script = r#"
        "$0" set job a=1 > /dev/null || exit 98
        head -c 1000000 /dev/zero > disk/fill 2> /dev/null
        long=$(head -c 100000 /dev/zero | tr '\0' x)
        "$0" set job a="\"$long\""; echo "set $?"
        STATEPACT_STORE=disk/new.redb "$0" set job a=1; echo "new $?"
        STATEPACT_STORE=disk/new.redb "$0" run job -- echo never; echo "run $?"
        rm disk/fill
        "$0" get job a
        "$0" check > /dev/null && "$0" set job a=2 > /dev/null
        "$0" get job a; ls disk
    "#;
    let ran = on_a_small_disk(&world, script).expect(0);
    assert_eq!(
        ran.out, "set 1\nnew 1\nrun 1\n1\n2\nstate.redb\n",
        "{ran:#?}"
    );
    assert_eq!(ran.err.lines().count(), 3, "{ran:#?}");
    for line in ran.err.lines() {
        assert!(
            line.starts_with("statepact: ") && line.contains("free some space"),
            "{line}"
        );
    }
}

#[test]
fn a_read_only_disk_gives_one_clear_line() {
    let world = World::new();
    let script = r#"
        "$0" set job a=1 > /dev/null && mount -o remount,ro disk || exit 98
        "$0" set job a=2; echo "set $?"
        STATEPACT_STORE=disk/new.redb "$0" set job a=1; echo "new $?"
    "#;
    let ran = on_a_small_disk(&world, script).expect(0);
    assert_eq!(ran.out, "set 1\nnew 1\n", "{ran:#?}");
    assert_eq!(ran.err.lines().count(), 2, "{ran:#?}");
    for line in ran.err.lines() {
        assert!(line.contains("Read-only file system"), "{line}");
    }
}

#[test]
fn a_damaged_store_is_one_line_and_status_7() {
    let world = World::new();
    for number in 0..4 {
        world.run(["set", &format!("r/{number}"), "x=1"]).expect(0);
    }
    let whole = std::fs::read(world.store()).unwrap();
    for from in [0, 512, 4096, 8192] {
        let mut damaged = whole.clone();
        for at in (from..damaged.len()).step_by(512) {
            let end = (at + 8).min(damaged.len());
            damaged[at..end].fill(0xA5);
        }
        std::fs::write(world.store(), &damaged).unwrap();
        let ran = world.words("ls").expect(7);
        assert!(ran.error_line().contains("corrupt"), "{from}: {ran:?}");
        world.words("--json check").expect(7).error();
        // R29: nothing was mended by guessing, and nothing is answered wrongly.
        let get = world.words("get r/0 x");
        assert!(get.status == Some(7) || get.out == "1\n", "{from}: {get:?}");
        world.words("check").expect(7);
    }
}
