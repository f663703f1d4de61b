//! The command line, as clap sees it. The texts of `--help` are in `help.rs`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum, ValueHint};
use statepact::{AgentName, FieldName, OwnerName, ResourceName, Token, Ttl};

use crate::help;
use crate::parse::{self, Assignment, Wait};

/// Leases, fencing tokens and transactions for work that must have one owner
/// at a time.
#[derive(Debug, Parser)]
#[command(
    name = "statepact",
    version,
    about,
    long_about = help::ABOUT,
    after_help = help::TOP,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// The store: a path or a URL [default: ./statepact.redb]
    #[arg(long, global = true, env = "STATEPACT_STORE", value_name = "PATH|URL",
          value_hint = ValueHint::FilePath, hide_env_values = true)]
    pub(crate) store: Option<OsString>,

    /// Print results as JSON, one object (one a line for ls, log and demo)
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        help = "Colour: on a terminal, always or never (NO_COLOR is heard too)"
    )]
    pub(crate) color: Color,

    /// How long to wait for a store that another process has [default: 5s]
    #[arg(long, global = true, value_name = "DUR", value_parser = parse::duration(),
          allow_hyphen_values = true)]
    pub(crate) busy_timeout: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Play the story of a paused worker, with real processes
    #[command(long_about = help::DEMO.0, after_help = help::DEMO.1)]
    Demo,
    /// Run a command while holding and renewing a lease
    #[command(long_about = help::RUN.0, after_help = help::RUN.1)]
    Run(RunArgs),
    /// Acquire, renew, release, revoke or show a lease
    #[command(long_about = help::LEASE.0, after_help = help::LEASE.1,
              subcommand_required = true, arg_required_else_help = true)]
    Lease {
        #[command(subcommand)]
        command: LeaseCommand,
    },
    /// Print the mark of a resource: its highest token
    #[command(long_about = help::FENCE.0, after_help = help::FENCE.1)]
    Fence(ResourceArg),
    /// Check that a token is not stale
    #[command(long_about = help::GUARD.0, after_help = help::GUARD.1)]
    Guard(GuardArgs),
    /// Print the state of a resource, or one field of it
    #[command(long_about = help::GET.0, after_help = help::GET.1)]
    Get(GetArgs),
    /// Write fields of a resource
    #[command(long_about = help::SET.0, after_help = help::SET.1)]
    Set(SetArgs),
    /// Delete a resource, or some of its fields
    #[command(long_about = help::RM.0, after_help = help::RM.1)]
    Rm(RmArgs),
    /// List resources, with their leases
    #[command(long_about = help::LS.0, after_help = help::LS.1)]
    Ls(LsArgs),
    /// Print the history of the store
    #[command(long_about = help::LOG.0, after_help = help::LOG.1)]
    Log(LogArgs),
    /// Verify everything that the store holds
    #[command(long_about = help::CHECK.0, after_help = help::CHECK.1)]
    Check,
    /// Copy everything of one store into another
    #[command(long_about = help::COPY.0, after_help = help::COPY.1)]
    Copy(CopyArgs),
    /// Print the completions of a shell
    #[command(long_about = help::COMPLETIONS.0, after_help = help::COMPLETIONS.1)]
    Completions {
        /// The shell
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum LeaseCommand {
    /// Take a lease
    #[command(long_about = help::ACQUIRE.0, after_help = help::ACQUIRE.1)]
    Acquire(AcquireArgs),
    /// Extend a live lease
    #[command(long_about = help::RENEW.0, after_help = help::RENEW.1)]
    Renew(RenewArgs),
    /// End a live lease
    #[command(long_about = help::RELEASE.0, after_help = help::RELEASE.1)]
    Release(HolderArgs),
    /// End any lease of a resource and fence its owner (for operators)
    #[command(long_about = help::REVOKE.0, after_help = help::REVOKE.1)]
    Revoke(ResourceArg),
    /// Show the last lease of a resource
    #[command(long_about = help::SHOW.0, after_help = help::SHOW.1)]
    Show(ResourceArg),
}

#[derive(Debug, Args)]
pub(crate) struct ResourceArg {
    /// The resource: 1 to 512 bytes of UTF-8
    #[arg(value_name = "RESOURCE", value_parser = parse::resource())]
    pub(crate) resource: ResourceName,
}

/// The default of `--ttl`.
pub(crate) const DEFAULT_TTL: &str = "30s";

#[derive(Debug, Args)]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    pub(crate) of: ResourceArg,
    /// Who will hold it [default: unique to this process]
    #[arg(long, value_name = "OWNER", value_parser = parse::owner())]
    pub(crate) owner: Option<OwnerName>,
    /// How long it lasts without renewal: 1 ms to 366 days
    #[arg(long, value_name = "DUR", value_parser = parse::ttl(), default_value = DEFAULT_TTL,
          allow_hyphen_values = true)]
    pub(crate) ttl: Ttl,
    /// Wait for another owner's lease to end: for ever, or at most DUR
    #[arg(long, value_name = "DUR", value_parser = parse::wait(), num_args = 0..=1,
          default_missing_value = parse::FOREVER)]
    pub(crate) wait: Option<Wait>,
}

/// Who holds a lease, as `lease acquire` printed it.
#[derive(Debug, Args)]
pub(crate) struct HolderArgs {
    #[command(flatten)]
    pub(crate) of: ResourceArg,
    /// The owner, as `lease acquire` printed it
    #[arg(long, value_name = "OWNER", value_parser = parse::owner())]
    pub(crate) owner: OwnerName,
    /// The token, as `lease acquire` printed it
    #[arg(long, value_name = "N", value_parser = parse::token(), allow_hyphen_values = true)]
    pub(crate) token: Token,
}

#[derive(Debug, Args)]
pub(crate) struct RenewArgs {
    #[command(flatten)]
    pub(crate) holder: HolderArgs,
    /// How long from now: 1 ms to 366 days [default: the lease's own]
    #[arg(long, value_name = "DUR", value_parser = parse::ttl(), allow_hyphen_values = true)]
    pub(crate) ttl: Option<Ttl>,
}

#[derive(Debug, Args)]
pub(crate) struct GuardArgs {
    #[command(flatten)]
    pub(crate) of: ResourceArg,
    /// The token to check: 1 to 9223372036854775807
    #[arg(long, value_name = "N", value_parser = parse::token(), allow_hyphen_values = true)]
    pub(crate) token: Token,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) of: ResourceArg,
    /// Print this field alone
    #[arg(value_name = "FIELD", value_parser = parse::field())]
    pub(crate) field: Option<FieldName>,
}

/// Who writes, and under which fence.
#[derive(Debug, Args)]
pub(crate) struct WriteArgs {
    /// Refuse the write if the resource has a newer token than N
    #[arg(long, value_name = "N", value_parser = parse::token(), allow_hyphen_values = true)]
    pub(crate) fence: Option<Token>,
    /// Check the fence against this resource instead
    #[arg(long, value_name = "RESOURCE", value_parser = parse::resource(), requires = "fence")]
    pub(crate) fence_resource: Option<ResourceName>,
    /// Refuse the write also if the fence's lease is no longer live
    #[arg(long, requires = "fence")]
    pub(crate) fence_live: bool,
    /// Refuse the write if the resource's version is not N; 0: if it exists
    #[arg(long, value_name = "N", value_parser = parse::version(), allow_hyphen_values = true)]
    pub(crate) if_version: Option<u64>,
    /// Who writes, for the history
    #[arg(long, value_name = "AGENT", value_parser = parse::agent(), default_value = "statepact-cli")]
    pub(crate) agent: AgentName,
}

#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    pub(crate) of: ResourceArg,
    /// What to write: a field's name, `=`, and its value as JSON
    #[arg(value_name = "FIELD=JSON", value_parser = parse::assignment(),
          required_unless_present = "require_fence")]
    pub(crate) fields: Vec<Assignment>,
    #[command(flatten)]
    pub(crate) write: WriteArgs,
    /// From now on, refuse writes to the resource that carry no fence
    #[arg(long, value_name = "BOOL", action = ArgAction::Set)]
    pub(crate) require_fence: Option<bool>,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    #[command(flatten)]
    pub(crate) of: ResourceArg,
    /// Delete these fields and keep the resource
    #[arg(value_name = "FIELD", value_parser = parse::field())]
    pub(crate) fields: Vec<FieldName>,
    #[command(flatten)]
    pub(crate) write: WriteArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// List the resources whose names begin with this
    #[arg(value_name = "PREFIX", value_parser = parse::prefix(), default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// Go on printing new events until interrupted
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Print the events of this resource alone
    #[arg(long, value_name = "RESOURCE", value_parser = parse::resource())]
    pub(crate) resource: Option<ResourceName>,
    /// Begin after this sequence [default: the oldest event kept]
    #[arg(long, value_name = "N", value_parser = parse::version(), allow_hyphen_values = true)]
    pub(crate) after: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct CopyArgs {
    /// The store to copy: a path or a URL
    #[arg(value_name = "FROM", value_hint = ValueHint::FilePath)]
    pub(crate) from: OsString,
    /// The store to copy to: a path or a URL
    #[arg(value_name = "TO", value_hint = ValueHint::FilePath)]
    pub(crate) to: OsString,
    /// What becomes of resources that both hold and that differ
    #[arg(long, value_name = "HOW", default_value = "refuse")]
    pub(crate) merge: MergeArg,
    /// Go on copying what is written to FROM until interrupted
    #[arg(long, short)]
    pub(crate) follow: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum MergeArg {
    /// Nothing is copied any more
    Refuse,
    /// The one with the higher version stays
    Newer,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) acquire: AcquireArgs,
    /// How long the command has to end between SIGTERM and SIGKILL
    #[arg(long, value_name = "DUR", value_parser = parse::duration(), default_value = "10s",
          allow_hyphen_values = true)]
    pub(crate) grace: Duration,
    /// The command and its arguments, after `--`
    #[arg(value_name = "CMD", last = true, required = true, num_args = 1..,
          value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}
