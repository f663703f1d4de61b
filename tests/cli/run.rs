//! `run`: one command at a time, and none without its lease.

use std::io::Write;
use std::process::Stdio;

use rustix::process::Signal;

use super::support::{Running, World, is_alive, pause, state_of, wait_until};

#[test]
fn the_command_finds_its_lease_in_its_environment() {
    let world = World::new();
    let script = "echo $STATEPACT_STORE; echo $STATEPACT_RESOURCE; echo $STATEPACT_OWNER; echo $STATEPACT_TOKEN";
    let ran = world.start_run(&["--owner", "me"], script).end().expect(0);
    let store = world.store();
    assert_eq!(ran.out, format!("{}\nbackup\nme\n1\n", store.display()));
    assert_eq!(world.lease_state("backup"), "released");

    // Absolute, also when it was not named so.
    let mut command = world.command(["--store", "state.redb", "run", "backup", "--"]);
    command.args(["sh", "-c", "cd /; echo $STATEPACT_STORE"]);
    let ran = Running::start(command).end().expect(0);
    assert_eq!(
        ran.out.trim(),
        store.canonicalize().unwrap().to_string_lossy()
    );
}

#[test]
fn the_command_can_write_under_its_fence() {
    let world = World::new();
    let script = format!(
        "'{}' set backup done=true --fence $STATEPACT_TOKEN",
        env!("CARGO_BIN_EXE_statepact")
    );
    world.start_run(&[], &script).end().expect(0);
    assert_eq!(world.words("get backup done").out, "true\n");
}

#[test]
fn its_exit_status_is_the_commands() {
    let world = World::new();
    for status in [0, 1, 3, 4, 42, 255] {
        let script = format!("exit {status}");
        world.start_run(&[], &script).end().expect(status);
    }
    world.start_run(&[], "kill -KILL $$").end().expect(128 + 9);
    world.start_run(&[], "kill -TERM $$").end().expect(128 + 15);
}

#[test]
fn a_second_run_is_refused_and_one_that_waits_follows() {
    let world = World::new();
    let first = world.start_run(
        &[],
        "echo first >> order; while ! test -e go; do sleep 0.02; done; echo end >> order",
    );
    world.wait_until_held("backup");
    let refused = world.start_run(&[], "echo never >> order").end().expect(3);
    assert!(refused.error_line().contains("leased to"), "{refused:?}");
    let waiting = world.start_run(&["--wait"], "echo second >> order");
    let timed_out = world
        .start_run(&["--wait", "200ms"], "echo never >> order")
        .end()
        .expect(6);
    assert!(timed_out.err.contains("timed out"), "{timed_out:?}");
    std::fs::write(world.path("go"), "").unwrap();
    first.end().expect(0);
    waiting.end().expect(0);
    let order = std::fs::read_to_string(world.path("order")).unwrap();
    assert_eq!(order, "first\nend\nsecond\n");
}

/// A shell with a child of its own, both of which name themselves.
const FAMILY: &str = "sleep 600 & echo $! > child; echo $$ > leader; wait";

#[test]
fn a_revoked_lease_ends_the_whole_group() {
    let world = World::new();
    let run = world.start_run(&["--ttl", "3s"], FAMILY);
    let (leader, child) = (world.wait_for_pid("leader"), world.wait_for_pid("child"));
    world.words("lease revoke backup").expect(0);
    let ran = run.end().expect(4);
    assert!(ran.error_line().contains("lost"), "{ran:?}");
    assert!(!is_alive(leader) && !is_alive(child));
    // The successor's lease is untouched by what the loser does at its end.
    assert_eq!(world.words("fence backup").out, "2\n");
}

#[test]
fn the_loss_is_an_error_object_in_json() {
    let world = World::new();
    let run = world.start([
        "--json", "run", "backup", "--ttl", "600ms", "--", "sleep", "600",
    ]);
    world.wait_until_held("backup");
    world.words("lease revoke backup").expect(0);
    let error = run.end().expect(4).error();
    assert_eq!(error["kind"], "lease_lost");
    assert_eq!(error["superseded_by"], 2);
}

#[test]
fn a_lease_that_could_not_be_renewed_says_why_it_was_lost() {
    let world = World::new();
    let run = world.start([
        "--json", "run", "backup", "--ttl", "900ms", "--", "sleep", "600",
    ]);
    world.wait_until_held("backup");
    std::fs::rename(world.store(), world.path("moved.redb")).unwrap();
    let error = run.end().expect(4).error();
    assert_eq!(error["reason"], "expired");
    let cause = error["cause"].as_str().unwrap();
    assert!(cause.contains("state.redb"), "{cause}");
}

#[test]
fn a_lease_that_could_not_be_released_is_warned_of() {
    let world = World::new();
    let script = "mv state.redb moved.redb";
    let ran = world
        .start(["--json", "run", "backup", "--", "sh", "-c", script])
        .end();
    let ran = ran.expect(0);
    assert!(ran.err.starts_with("{\"warning\":"), "{ran:?}");
    let ran = world
        .start(["run", "backup", "--", "sh", "-c", script])
        .end()
        .expect(0);
    assert!(ran.err.contains("could not be released"), "{ran:?}");
}

#[test]
fn a_command_that_ignores_sigterm_is_killed_after_the_grace_period() {
    let world = World::new();
    let script = "trap '' TERM; echo $$ > leader; while :; do sleep 0.05; done";
    for signalled in [false, true] {
        let run = world.start_run(&["--ttl", "600ms", "--grace", "300ms"], script);
        let leader = world.wait_for_pid("leader");
        std::fs::remove_file(world.path("leader")).unwrap();
        if signalled {
            run.signal(Signal::TERM);
            run.end().expect(128 + 9);
        } else {
            world.words("lease revoke backup").expect(0);
            run.end().expect(4);
        }
        assert!(!is_alive(leader));
    }
}

#[test]
fn a_command_that_cleans_up_on_sigterm_may_finish() {
    let world = World::new();
    let script =
        "trap 'echo cleaned > out; exit 0' TERM; echo ready > ready; while :; do sleep 0.05; done";
    let run = world.start_run(&["--ttl", "600ms"], script);
    world.wait_for_file("ready");
    world.words("lease revoke backup").expect(0);
    run.end().expect(4);
    assert_eq!(world.wait_for_file("out"), "cleaned");
}

#[test]
fn a_stopped_command_is_ended_with_its_lease() {
    let world = World::new();
    let run = world.start_run(&["--ttl", "600ms"], "echo $$ > leader; kill -STOP $$");
    let leader = world.wait_for_pid("leader");
    world.words("lease revoke backup").expect(0);
    run.end().expect(4);
    assert!(!is_alive(leader));
}

#[test]
fn signals_are_passed_on() {
    let world = World::new();
    for (name, signal) in [
        ("INT", Signal::INT),
        ("TERM", Signal::TERM),
        ("HUP", Signal::HUP),
        ("QUIT", Signal::QUIT),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
    ] {
        let script =
            format!("trap 'exit 77' {name}; echo ready > ready; while :; do sleep 0.05; done");
        let run = world.start_run(&[], &script);
        world.wait_for_file("ready");
        std::fs::remove_file(world.path("ready")).unwrap();
        run.signal(signal);
        run.end().expect(77);
        assert_eq!(world.lease_state("backup"), "released", "{name}");
    }
}

#[test]
fn sigtstp_stops_the_command_and_sigcont_lets_it_go_on() {
    let world = World::new();
    let script = "echo $$ > leader; i=0; while ! test -e go; do sleep 0.02; done; exit 5";
    let run = world.start_run(&["--ttl", "60s"], script);
    let leader = world.wait_for_pid("leader");
    run.signal(Signal::TSTP);
    wait_until("both to stop", || {
        state_of(leader) == Some('T') && state_of(run.pid()) == Some('T')
    });
    run.signal(Signal::CONT);
    std::fs::write(world.path("go"), "").unwrap();
    run.end().expect(5);
}

#[test]
fn a_run_that_was_stopped_past_its_expiry_ends_its_command_when_it_wakes() {
    let world = World::new();
    let run = world.start_run(&["--ttl", "600ms"], FAMILY);
    let child = world.wait_for_pid("child");
    run.signal(Signal::STOP);
    wait_until("the lease to expire", || {
        world.lease_state("backup") == "expired"
    });
    let next = world
        .words("--json lease acquire backup --owner next --ttl 1h")
        .expect(0);
    run.signal(Signal::CONT);
    run.end().expect(4);
    assert!(!is_alive(child));
    // R6: the successor's lease is as it was.
    let shown = world.words("--json lease show backup").json();
    assert_eq!(shown["lease_state"], "live");
    assert_eq!(shown["expires_at"], next.json()["expires_at"]);
}

#[cfg(target_os = "linux")]
#[test]
fn the_command_does_not_outlive_a_run_that_is_killed() {
    let world = World::new();
    let run = world.start_run(
        &["--ttl", "60s"],
        "echo $$ > leader; while :; do sleep 0.05; done",
    );
    let leader = world.wait_for_pid("leader");
    run.signal(Signal::KILL);
    run.end();
    wait_until("the command to be killed", || !is_alive(leader));
}

#[test]
fn what_the_command_leaves_behind_is_ended_before_the_lease_is_released() {
    let world = World::new();
    let ran = world
        .start_run(&[], "sleep 600 >/dev/null 2>&1 & echo $! > child; exit 9")
        .end()
        .expect(9);
    assert_eq!(ran.err, "");
    assert!(!is_alive(world.wait_for_pid("child")));
    assert_eq!(world.lease_state("backup"), "released");
}

#[test]
fn a_command_that_cannot_be_run_gives_one_clear_line_and_the_lease_back() {
    let world = World::new();
    std::fs::write(world.path("plain"), "no program\n").unwrap();
    for (program, status) in [
        ("./missing", 127),
        ("no-such-command", 127),
        ("./plain", 126),
        (".", 126),
    ] {
        let ran = world.run(["run", "backup", "--", program]).expect(status);
        assert!(ran.error_line().contains(program), "{ran:?}");
        let ran = world
            .run(["--json", "run", "backup", "--", program])
            .expect(status);
        assert_eq!(ran.error()["command"], program);
        assert_eq!(world.lease_state("backup"), "released");
    }
}

#[test]
fn the_lease_is_renewed_for_as_long_as_the_command_runs() {
    let world = World::new();
    let run = world.start_run(
        &["--ttl", "600ms"],
        "while ! test -e go; do sleep 0.02; done",
    );
    world.wait_until_held("backup");
    let expiry = || world.words("--json lease show backup").json()["expires_at"].clone();
    let first = expiry();
    let mut seen = 0;
    let mut last = first;
    wait_until("five renewals", || {
        let now = expiry();
        seen += i32::from(now != last);
        last = now;
        seen >= 5
    });
    std::fs::write(world.path("go"), "").unwrap();
    run.end().expect(0);
    assert_eq!(world.words("fence backup").out, "1\n");
}

#[test]
fn standard_input_reaches_the_command() {
    let world = World::new();
    let mut command = world.command(["run", "backup", "--", "cat"]);
    command.stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"through\n").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"through\n");
}

#[test]
fn a_run_that_is_told_to_end_while_it_waits_holds_nothing() {
    let world = World::new();
    world
        .words("lease acquire backup --owner other --ttl 1h")
        .expect(0);
    let waiting = world.start_run(&["--wait"], "echo never > never");
    pause(300);
    waiting.signal(Signal::TERM);
    waiting.end().expect(128 + 15);
    world
        .words("lease release backup --owner other --token 1")
        .expect(0);
    pause(300);
    assert_eq!(world.lease_state("backup"), "released");
    assert!(!world.path("never").exists());
}

#[test]
fn a_stopped_command_hears_every_signal_that_asks_it_to_end() {
    let world = World::new();
    for (signal, status) in [(Signal::INT, 130), (Signal::HUP, 129), (Signal::QUIT, 131)] {
        let script = "ulimit -c 0; echo $$ > leader; kill -STOP $$; echo never > never";
        let run = world.start_run(&[], script);
        let leader = world.wait_for_pid("leader");
        std::fs::remove_file(world.path("leader")).unwrap();
        wait_until("the command to stop", || state_of(leader) == Some('T'));
        run.signal(signal);
        run.end().expect(status);
        assert!(!world.path("never").exists());
    }
}

#[test]
fn a_command_that_waits_for_the_terminal_is_told_of() {
    let world = World::new();
    let run = world.start_run(&[], "echo $$ > leader; kill -TTIN $$");
    let leader = world.wait_for_pid("leader");
    wait_until("the command to stop", || state_of(leader) == Some('T'));
    pause(100);
    run.signal(Signal::INT);
    let ran = run.end().expect(130);
    assert!(ran.err.contains("read from the terminal"), "{ran:?}");
}

#[test]
fn a_command_that_leaves_its_group_is_ended_all_the_same() {
    let world = World::new();
    let script = r#"setpgrp(0, getpgrp(getppid())); open(my $f, ">", "leader"); print $f "$$\n"; close $f; sleep 600"#;
    for ask in [true, false] {
        let run = world.start([
            "run", "backup", "--ttl", "600ms", "--", "perl", "-e", script,
        ]);
        let leader = world.wait_for_pid("leader");
        std::fs::remove_file(world.path("leader")).unwrap();
        if ask {
            run.signal(Signal::TERM);
            run.end().expect(128 + 15);
        } else {
            world.words("lease revoke backup").expect(0);
            run.end().expect(4);
        }
        assert!(!is_alive(leader));
    }
}

#[test]
fn a_signal_that_is_ignored_stays_ignored_for_the_command_too() {
    let world = World::new();
    let mut command = std::process::Command::new("env");
    command
        .args(["--ignore-signal=HUP,INT", env!("CARGO_BIN_EXE_statepact")])
        .args(["run", "backup", "--", "sh", "-c"])
        .arg("echo ready > ready; while ! test -e go; do sleep 0.02; done; echo survived")
        .env("STATEPACT_STORE", world.store())
        .current_dir(world.folder.path())
        .stdout(Stdio::piped());
    let run = Running::start(command);
    world.wait_for_file("ready");
    run.signal(Signal::HUP);
    run.signal(Signal::INT);
    pause(100);
    std::fs::write(world.path("go"), "").unwrap();
    assert_eq!(run.end().expect(0).out, "survived\n");
}

#[test]
fn orphans_of_the_command_are_waited_for_while_it_runs() {
    let world = World::new();
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do (sleep 0.01 &); done; echo ready > ready; \
                  while ! test -e go; do sleep 0.02; done";
    let run = world.start_run(&[], script);
    world.wait_for_file("ready");
    let parent = run.pid().as_raw_nonzero().to_string();
    let zombies = || {
        let listed = std::process::Command::new("ps")
            .args(["--no-headers", "-o", "stat", "--ppid", &parent])
            .output()
            .unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        listed
            .lines()
            .filter(|state| state.starts_with('Z'))
            .count()
    };
    wait_until("the orphans to be waited for", || zombies() == 0);
    std::fs::write(world.path("go"), "").unwrap();
    run.end().expect(0);
}
