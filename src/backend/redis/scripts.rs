//! The scripts: one for each operation, put together from the files in `lua/`.

use std::borrow::Cow;
use std::sync::LazyLock;

use super::keys::Keys;
use crate::resource::ResourceName;

/// A script, and the SHA-1 that the server knows it by.
pub(super) struct Script {
    pub(super) name: &'static str,
    /// Whether a call that got no answer may have changed something.
    pub(super) writes: bool,
    source: String,
    hash: String,
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Script {
    fn new(name: &'static str, writes: bool, body: &str) -> Self {
        let source = [
            include_str!("lua/prelude.lua"),
            if writes {
                include_str!("lua/write.lua")
            } else {
                ""
            },
            "local function main()\n",
            body,
            "end\n",
            include_str!("lua/epilogue.lua"),
        ]
        .concat();
        let hash = ::redis::Script::new(&source).get_hash().to_owned();
        Self {
            name,
            writes,
            source,
            hash,
        }
    }
}

macro_rules! scripts {
    ($($name:ident = $file:literal, $writes:literal;)+) => {
        $(pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new($file, $writes, include_str!(concat!("lua/", $file, ".lua")))
        });)+
    };
}

scripts! {
    ACQUIRE = "acquire", true;
    RENEW = "renew", true;
    RELEASE = "release", true;
    REVOKE = "revoke", true;
    COMMIT = "commit", true;
    STATUS = "status", false;
    NOW = "now", false;
    READ = "read", false;
    LIST = "list", false;
    EVENTS = "events", false;
    EXPORT = "export", false;
    IMPORT = "import", true;
    CHECK = "check", false;
    RECEIPTS = "receipts", false;
    ACCESS = "access", false;
}

/// A call of a script: its keys and arguments.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) script: &'static Script,
    keys: Vec<String>,
    arguments: Vec<Cow<'a, str>>,
}

impl<'a> Call<'a> {
    /// A call about `resources`; the time, the history's length and the
    /// channel are arguments of every script.
    pub(super) fn new(
        script: &'static Script,
        keys: &Keys,
        time: Option<i64>,
        history: u64,
        resources: &[&ResourceName],
    ) -> Self {
        let mut call = Self {
            script,
            keys: keys.shared(),
            arguments: vec![
                time.map_or(Cow::Borrowed(""), |time| Cow::Owned(time.to_string())),
                Cow::Owned(history.to_string()),
                Cow::Owned(keys.channel()),
            ],
        };
        for resource in resources {
            call.keys.push(keys.lease(resource.as_str()));
            call.keys.push(keys.fence(resource.as_str()));
            call.keys.push(keys.state(resource.as_str()));
        }
        call
    }

    pub(super) fn text(&mut self, argument: impl Into<Cow<'a, str>>) {
        self.arguments.push(argument.into());
    }

    pub(super) fn number(&mut self, argument: &impl ToString) {
        self.arguments.push(Cow::Owned(argument.to_string()));
    }

    pub(super) fn flag(&mut self, argument: bool) {
        self.text(if argument { "1" } else { "0" });
    }

    /// The command for a server that knows the script.
    pub(super) fn by_hash(&self) -> ::redis::Cmd {
        self.command("EVALSHA", &self.script.hash)
    }

    /// The command that brings the script along, after which the server knows
    /// it.
    pub(super) fn by_source(&self) -> ::redis::Cmd {
        self.command("EVAL", &self.script.source)
    }

    fn command(&self, name: &str, script: &str) -> ::redis::Cmd {
        let mut command = ::redis::cmd(name);
        command
            .arg(script)
            .arg(self.keys.len())
            .arg(&self.keys)
            .arg(
                self.arguments
                    .iter()
                    .map(Cow::as_ref)
                    .collect::<Vec<&str>>(),
            );
        command
    }
}
