//! What is printed: JSON for programs, text for people.

use std::io::{BufRead, BufReader};

use rustix::process::Signal;
use serde_json::{Value as Json, json};

use super::support::{Running, World};

fn keys(object: &Json) -> Vec<&str> {
    object
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

fn with_history() -> World {
    let world = World::new();
    world
        .words("lease acquire jobs/1 --owner a --ttl 1h")
        .expect(0);
    world
        .words("set jobs/1 state=\"run\" tries=2 --fence 1 --agent tester")
        .expect(0);
    world.words("rm jobs/1 tries").expect(0);
    world
        .words("lease release jobs/1 --owner a --token 1")
        .expect(0);
    world.words("lease revoke jobs/1").expect(0);
    world.words("set other x=[1,{\"y\":null}]").expect(0);
    world
}

#[test]
fn get_prints_values_as_they_are() {
    let world = with_history();
    assert_eq!(
        world.words("get other x").expect(0).out,
        "[1,{\"y\":null}]\n"
    );
    assert_eq!(
        world.words("get jobs/1").expect(0).out,
        "{\"state\":\"run\"}\n"
    );
    assert_eq!(
        world.words("--json get other").expect(0).json(),
        json!({
            "resource": "other", "version": 1, "fenced": false,
            "fields": { "x": [1, { "y": null }] },
        })
    );
    assert_eq!(
        world.words("--json get other x").expect(0).json(),
        json!({ "resource": "other", "field": "x", "version": 1, "value": [1, { "y": null }] })
    );
}

#[test]
fn numbers_keep_every_digit() {
    let world = World::new();
    for number in [
        "9007199254740993",
        "340282366920938463463374607431768211455",
        "0.1",
        "1e300",
    ] {
        world.run(["set", "job", &format!("n={number}")]).expect(0);
        assert_eq!(world.words("get job n").expect(0).out.trim(), number);
        for line in [
            "get job",
            "--json get job",
            "--json get job n",
            "--json log",
        ] {
            let out = world.words(line).expect(0).out;
            assert!(out.contains(number), "{line}: {out}");
        }
    }
}

#[test]
fn set_and_rm_say_the_version() {
    let world = World::new();
    let set = world.words("--json set job a=1 b=2").expect(0).json();
    assert_eq!(keys(&set), ["resource", "sequence", "version"]);
    assert_eq!(set["version"], 1);
    let removed = world.words("--json rm job b").expect(0).json();
    assert_eq!(removed["removed"], true);
    assert_eq!(removed["version"], 2);
    let nothing = world.words("--json rm job b").expect(0).json();
    assert_eq!(nothing["removed"], false);
    assert_eq!(nothing["version"], Json::Null);
    world.words("rm job").expect(0);
    world.words("get job").expect(1);
    // The version count outlives the resource.
    let again = world.words("--json set job a=1").expect(0).json();
    assert_eq!(again["version"], 4);
}

#[test]
fn ls_prints_an_object_a_line_and_takes_the_prefix_literally() {
    let world = with_history();
    world.run(["set", "100%", "a=1"]).expect(0);
    let all = world.words("--json ls").expect(0).json_lines();
    let names: Vec<&str> = all
        .iter()
        .map(|r| r["resource"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["100%", "jobs/1", "other"]);
    let job = &all[1];
    assert_eq!(job["mark"], 2);
    assert_eq!(job["lease_state"], "superseded");
    assert_eq!(job["fields"], 1);
    assert_eq!(all[2]["lease_state"], "none");
    for (prefix, count) in [
        ("jobs/", 1),
        ("%", 0),
        ("100%", 1),
        ("_", 0),
        ("*", 0),
        ("", 3),
    ] {
        let found = world.run(["--json", "ls", prefix]).expect(0).json_lines();
        assert_eq!(found.len(), count, "{prefix}");
    }
    let table = world.words("ls").expect(0).out;
    assert!(
        table.lines().next().unwrap().contains("RESOURCE"),
        "{table}"
    );
    assert_eq!(table.lines().count(), 4);
}

#[test]
fn log_prints_an_object_a_line() {
    let world = with_history();
    let events = world.words("--json log").expect(0).json_lines();
    let kinds: Vec<&str> = events
        .iter()
        .map(|e| e["event"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "acquired",
            "committed",
            "committed",
            "released",
            "revoked",
            "committed"
        ]
    );
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence"], number as u64 + 1);
        event["at"]
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap();
    }
    assert_eq!(events[1]["agent"], "tester");
    assert_eq!(
        events[1]["fences"],
        json!([{ "resource": "jobs/1", "token": 1 }])
    );
    assert_eq!(
        events[1]["changes"][0]["fields"],
        json!({ "state": "run", "tries": 2 })
    );
    assert_eq!(events[2]["changes"][0]["removed_fields"], json!(["tries"]));

    let of_one = world
        .words("--json log --resource other")
        .expect(0)
        .json_lines();
    assert_eq!(of_one.len(), 1);
    let after = world.words("--json log --after 4").expect(0).json_lines();
    assert_eq!(after.len(), 2);
    assert_eq!(world.words("log").expect(0).out.lines().count(), 6);
}

#[test]
fn log_follow_prints_what_happens() {
    let world = with_history();
    let mut following = world.start(["--json", "log", "--follow", "--after", "6"]);
    let mut lines = BufReader::new(following.take_out()).lines();
    world.words("set other x=5").expect(0);
    let event: Json = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(event["sequence"], 7);
    assert!(!following.has_ended());
    following.signal(Signal::TERM);
    following.end();
}

#[test]
fn lease_show_fence_and_guard() {
    let world = with_history();
    let shown = world.words("--json lease show jobs/1").expect(0).json();
    assert_eq!(shown["lease_state"], "superseded");
    assert_eq!(shown["mark"], 2);
    assert_eq!(shown["token"], 1);
    let never = world.words("--json lease show nothing").expect(0).json();
    assert_eq!(never["lease_state"], "none");
    assert_eq!(never["mark"], Json::Null);
    assert_eq!(world.words("fence jobs/1").expect(0).out, "2\n");
    assert_eq!(world.words("fence nothing").expect(0).out, "none\n");
    world.words("guard jobs/1 --token 2").expect(0);
    let held = world
        .words("--json lease acquire jobs/1 --ttl 1h")
        .expect(0);
    assert_eq!(held.json()["token"], 3);
    let shown = world.words("--json lease show jobs/1").expect(0).json();
    assert_eq!(shown["lease_state"], "live");
    assert!(shown["remaining_seconds"].as_f64().unwrap() <= 3600.0);
}

#[test]
fn check_counts_what_it_verified() {
    let world = with_history();
    assert_eq!(
        world.words("--json check").expect(0).json(),
        json!({ "resources": 2, "marks": 1, "leases": 1, "events": 6 })
    );
}

#[test]
fn colours_only_where_they_are_wanted() {
    let world = with_history();
    for line in [
        "ls",
        "log",
        "lease show jobs/1",
        "set other x=1",
        "get nothing",
    ] {
        let plain = world.words(line);
        assert!(
            !plain.out.contains('\u{1b}') && !plain.err.contains('\u{1b}'),
            "{plain:?}"
        );
    }
    let colored = world.words("--color always ls").expect(0);
    assert!(colored.out.contains('\u{1b}'), "{colored:?}");
    let mut command = world.command(["--color", "always", "get", "nothing"]);
    let error = Running::start({
        command.env("NO_COLOR", "1");
        command
    })
    .end();
    // Said on the command line, it outweighs the environment.
    assert!(error.err.contains('\u{1b}'), "{error:?}");
    let json = world.words("--color always --json ls").expect(0);
    assert!(!json.out.contains('\u{1b}'), "{json:?}");
}

#[test]
fn two_default_owners_are_never_the_same() {
    let world = World::new();
    let first = world.words("--json lease acquire job").expect(0).json();
    let refused = world.words("--json lease acquire job").expect(3).error();
    assert_eq!(refused["owner"], first["owner"]);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let world = with_history();
    let script = format!(
        "{{ sleep 0.2; '{}' log; echo $? > status; }} | true; while ! test -s status; do sleep 0.02; done",
        env!("CARGO_BIN_EXE_statepact")
    );
    let mut shell = std::process::Command::new("sh");
    shell
        .args(["-c", &script])
        .current_dir(world.folder.path())
        .env("STATEPACT_STORE", world.store())
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped());
    let ran = Running::start(shell).end().expect(0);
    assert_eq!(world.wait_for_file("status"), "0");
    assert_eq!(ran.err, "");
}

#[test]
fn characters_that_steer_a_terminal_are_not_printed() {
    let world = World::new();
    world.run(["set", "job", "a=\"\\u001b[2J\""]).expect(0);
    for line in ["get job a", "get job", "log", "ls"] {
        assert!(
            !world.words(line).expect(0).out.contains('\u{1b}'),
            "{line}"
        );
    }
}
