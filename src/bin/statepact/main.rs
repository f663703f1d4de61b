//! The `statepact` command.

mod args;
mod copy;
mod demo;
mod exec;
mod exit;
mod group;
mod help;
mod lease;
mod list;
mod output;
mod parse;
mod run;
mod signals;
mod state;
mod store;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use args::{Cli, Color, Command};
use exit::{Failure, status};
use output::Output;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = exec::if_asked(&arguments).or_else(|| demo::if_asked(&arguments)) {
        return code;
    }
    // Asked for before the arguments are parsed: they may not parse.
    let ours = || arguments.iter().take_while(|argument| *argument != "--");
    let output = Output {
        json: ours().any(|argument| argument == "--json"),
    };
    quiet_about_damaged_files();
    let outcome = Cli::try_parse_from(&arguments)
        .map_err(|error| usage(&error, output))
        .and_then(|cli| {
            set_color(cli.global.color);
            execute(cli)
        });
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            if let Some(report) = &failure.report {
                output.error(report);
            }
            failure.status.into()
        }
    }
}

/// The engine's storage library panics over some damaged files. That becomes an
/// error (R29), and is said as one.
fn quiet_about_damaged_files() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let theirs = panic
            .location()
            .is_some_and(|location| location.file().contains("redb"));
        if !theirs {
            usual(panic);
        }
    }));
}

fn set_color(color: Color) {
    match color {
        Color::Auto => {}
        Color::Always => anstream::ColorChoice::Always.write_global(),
        Color::Never => anstream::ColorChoice::Never.write_global(),
    }
}

/// Says what clap has to say: help on standard output, a wrong argument in one
/// line, any other misuse in clap's words with its tip and usage.
fn usage(error: &clap::Error, output: Output) -> Failure {
    let text = error.render();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let mut stdout = anstream::stdout().lock();
            return match write!(stdout, "{}", text.ansi()).and_then(|()| stdout.flush()) {
                Ok(()) => Failure::silent(0),
                Err(error) => Failure::output(&error),
            };
        }
        ErrorKind::ValueValidation => {
            let line = text.to_string();
            let line = line.trim_start_matches("error: ").trim();
            if let Some((argument, message)) = line
                .strip_prefix("invalid ")
                .and_then(|line| line.split_once(": "))
            {
                return Failure::argument(argument, message);
            }
        }
        _ => {}
    }
    if output.json {
        let text = text.to_string();
        let line = match error.kind() {
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "no command is given",
            // What is missing is listed below the first line.
            _ => text.split("\n\n").next().unwrap_or_default(),
        };
        let words: Vec<&str> = line.split_whitespace().collect();
        let line = words.join(" ");
        return Failure::new(status::USAGE, "usage", line.trim_start_matches("error: "));
    }
    let _ = write!(anstream::stderr().lock(), "{}", text.ansi());
    Failure::silent(status::USAGE)
}

fn execute(cli: Cli) -> Result<ExitCode, Failure> {
    let output = Output {
        json: cli.global.json,
    };
    // More than one thread, so that a renewal that hangs in the store does not
    // keep the loss of its lease from being noticed.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| {
            Failure::new(
                status::OTHER,
                "system",
                format!("cannot start the runtime: {error}"),
            )
        })?;
    let outcome = runtime.block_on(dispatch(cli, output));
    // What still hangs in a store that does not answer must not keep us.
    runtime.shutdown_background();
    outcome
}

async fn dispatch(cli: Cli, output: Output) -> Result<ExitCode, Failure> {
    let global = &cli.global;
    match &cli.command {
        Command::Demo => demo::demo(output).await?,
        Command::Run(args) => return run::run(global, args, output).await,
        Command::Lease { command } => lease::lease(global, command, output).await?,
        Command::Fence(args) => lease::fence(global, args, output).await?,
        Command::Guard(args) => lease::guard(global, args, output).await?,
        Command::Get(args) => state::get(global, args, output).await?,
        Command::Set(args) => state::set(global, args, output).await?,
        Command::Rm(args) => state::rm(global, args, output).await?,
        Command::Ls(args) => list::ls(global, args, output).await?,
        Command::Log(args) => list::log(global, args, output).await?,
        Command::Check => list::check(global, output).await?,
        Command::Copy(args) => return copy::copy(global, args, output).await,
        Command::Completions { shell } => completions(*shell)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "statepact", &mut script);
    Output::line(String::from_utf8_lossy(&script).trim_end())
}
