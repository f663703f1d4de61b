//! `--help`, `--version` and completions.

use super::support::World;

const COMMANDS: [&str; 19] = [
    "copy",
    "demo",
    "run",
    "lease",
    "lease acquire",
    "lease renew",
    "lease release",
    "lease revoke",
    "lease show",
    "fence",
    "guard",
    "get",
    "set",
    "rm",
    "ls",
    "log",
    "check",
    "completions",
    "",
];

#[test]
fn the_help_of_every_command_has_examples_and_exit_statuses() {
    let world = World::new();
    for command in COMMANDS {
        let line = format!("{command} --help");
        let help = world.words(line.trim_start()).expect(0).out;
        assert!(help.contains("EXAMPLES\n  "), "{command}: {help}");
        let says_status = help.to_lowercase().contains("exit status");
        // `lease` is a heading for its commands, each of which says it.
        assert!(says_status || command == "lease", "{command}: {help}");
    }
}

#[test]
fn every_command_is_in_the_list_above() {
    let world = World::new();
    for (of, group) in [("", ""), ("lease ", "lease ")] {
        let help = world.words(&format!("{of}--help")).expect(0).out;
        let listed = help
            .lines()
            .skip_while(|line| *line != "Commands:")
            .skip(1)
            .take_while(|line| !line.is_empty())
            .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
            .filter(|name| !name.is_empty() && *name != "help");
        let mut count = 0;
        for name in listed {
            count += 1;
            let command = format!("{group}{name}");
            assert!(COMMANDS.contains(&command.as_str()), "{command}");
        }
        assert!(count >= 5, "{help}");
    }
}

#[test]
fn the_options_that_the_examples_use_are_known() {
    let world = World::new();
    let mut seen = 0;
    for command in COMMANDS {
        let line = format!("{command} --help");
        let help = world.words(line.trim_start()).out;
        let (text, examples) = help.split_once("EXAMPLES").unwrap();
        let global = world.words("--help").out;
        let ours = examples
            .split_whitespace()
            .take_while(|word| *word != "EXIT")
            .map(|word| word.trim_matches(|c| c == '\'' || c == '"'))
            .filter(|word| word.starts_with("--") && word.len() > 2);
        for option in ours {
            let option = option.split('=').next().unwrap();
            seen += 1;
            // An overview shows the options of its commands.
            let known = text.contains(option)
                || global.contains(option)
                || COMMANDS.iter().any(|of| {
                    of.starts_with(command)
                        && world
                            .words(format!("{of} --help").trim_start())
                            .out
                            .contains(option)
                });
            assert!(known, "{command}: {option}");
        }
    }
    assert!(seen > 20, "{seen} options");
}

#[test]
fn the_version_is_printed() {
    let version = World::new().words("--version").expect(0).out;
    assert_eq!(
        version,
        format!("statepact {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn completions_for_each_shell_know_the_commands() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = world.words(&format!("completions {shell}")).expect(0).out;
        for word in ["acquire", "busy-timeout", "grace"] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
    }
    world.words("completions cmd.exe").expect(2);
}
