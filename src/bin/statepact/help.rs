//! The texts of `--help`: for each command what it means and which exit
//! statuses matter, and then examples.

/// What a command means, and its examples.
pub(crate) type Help = (&'static str, &'static str);

pub(crate) const ABOUT: &str = "\
Leases, fencing tokens and transactions for work that must have one owner at a time.

A lease says who owns a resource; its fencing token lets storage refuse the writes of an owner that \
paused, lost the lease and woke up late. The store is one file, safe for several processes on one \
machine; no server is needed. Built with the features postgres and redis, --store takes postgres://… \
and redis://… URLs as well.

Durations are written like 250ms, 30s, 5m or 1h30m. Times are local in tables and RFC 3339 elsewhere.";

pub(crate) const TOP: &str = "\
EXAMPLES
  statepact demo                                    watch a stale write being refused
  statepact run backup --ttl 30s -- ./backup.sh     one backup at a time
  statepact set jobs/7 state='\"done\"' --fence 12    write, unless token 12 is stale
  statepact ls                                      resources and their leases

EXIT STATUS
  0 done                      4 lease lost, or the token is stale
  1 another error             5 conflict
  2 usage                     6 busy, unavailable or timed out
  3 lease not available       7 the store is corrupt
  With --json an error is {\"error\":{\"kind\":…,\"message\":…}} on standard error.";

pub(crate) const DEMO: Help = (
    "\
Play the story that fencing is for, with real processes on a store in a temporary folder: a worker \
acquires a lease and writes, is stopped, its lease expires, another worker takes over and writes, \
and when the first one wakes its stale write is refused. It takes a few seconds and prints each step \
as it happens (with --json: one object a line). It uses no other store.

Exit status: 0 only if the stale write was refused and the state is the successor's.",
    "\
EXAMPLES
  statepact demo
  statepact --json demo",
);

pub(crate) const RUN: Help = (
    "\
Run a command while holding and renewing the lease of a resource, so that only one such command runs \
at a time. The command finds STATEPACT_STORE, STATEPACT_RESOURCE, STATEPACT_OWNER and STATEPACT_TOKEN \
in its environment, and should pass the token to what it writes to (`statepact set --fence`).

The command runs in a process group of its own. If the lease is lost, the whole group gets SIGTERM, \
and SIGKILL after --grace. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT \
are passed on to the group. When the command has ended, what is left of its group is ended the same \
way, and then the lease is released: start a process that is to outlive it with setsid. The group is \
in the background of the terminal, so the command's standard input is /dev/null where it would be \
a terminal, and a command that opens the terminal itself, to ask for a password, is stopped. On Linux the command is killed if statepact itself is killed (its own children are not).

Exit status: the command's own (128 + N if signal N killed it); 3 if another owner holds the lease; \
4 if the lease was lost; 6 if --wait DUR ran out; 126 if the command cannot be executed and 127 if it \
is not found.",
    "\
EXAMPLES
  statepact run backup --ttl 30s -- ./backup.sh /srv
  statepact run backup --wait 10m -- sh -c 'tar cf \"$1\" /srv' sh out.tar
  statepact run report --wait -- sh -c 'statepact set report at=1 --fence \"$STATEPACT_TOKEN\"'",
);

pub(crate) const LEASE: Help = (
    "\
Acquire, renew, release, revoke or show the lease of a resource. A script that runs one command under \
a lease is better served by `statepact run`, which renews by itself.",
    "\
EXAMPLES
  statepact lease acquire jobs/7 --owner worker-a --ttl 5m
  statepact lease renew jobs/7 --owner worker-a --token 1
  statepact lease release jobs/7 --owner worker-a --token 1
  statepact lease show jobs/7",
);

pub(crate) const ACQUIRE: Help = (
    "\
Take the lease of a resource for a time. The store and the resource are created if they do not exist. \
It prints owner and token, which renew and release need. An owner that holds the lease already keeps \
its token and has it extended, so two workers must not share an owner name.

Exit status: 3 if another owner holds the lease; 6 if --wait DUR ran out.",
    "\
EXAMPLES
  statepact lease acquire jobs/7
  statepact lease acquire jobs/7 --owner worker-a --ttl 5m --wait 1m
  token=$(statepact --json lease acquire jobs/7 --owner worker-a | jq .token)",
);

pub(crate) const RENEW: Help = (
    "\
Extend a live lease to a time to live from now. A lease that has expired cannot be renewed, even if \
nobody took over: acquire it again, which gives a new token.

Exit status: 4 if the lease is lost.",
    "\
EXAMPLES
  statepact lease renew jobs/7 --owner worker-a --token 12
  statepact lease renew jobs/7 --owner worker-a --token 12 --ttl 10m",
);

pub(crate) const RELEASE: Help = (
    "\
End a live lease, so that others can acquire it at once. A lease that is not live any more is left as \
it is, and so is its successor's: then it prints released false.

Exit status: 4 if the lease was not live.",
    "\
EXAMPLES
  statepact lease release jobs/7 --owner worker-a --token 12",
);

pub(crate) const REVOKE: Help = (
    "\
End any lease of a resource and raise its mark, so that its owner is fenced from that moment. It is \
an operator's tool: the owner hears of it at its next write, or at its next renewal, which `run` makes \
every third of the --ttl.

Exit status: 1 if the resource does not exist.",
    "\
EXAMPLES
  statepact lease revoke backup",
);

pub(crate) const SHOW: Help = (
    "\
Show the mark of a resource and its last lease: live, expired, released, superseded, or none if it \
never had one. \"Live\" was true when the store was looked at.

Exit status: 0 whatever the state of the lease.",
    "\
EXAMPLES
  statepact lease show backup
  statepact --json lease show backup | jq -r .lease_state",
);

pub(crate) const FENCE: Help = (
    "\
Print the mark of a resource: the highest token that was ever issued or observed in a write. `none` \
(null in JSON) if it never had a token.

Exit status: 0 in both cases.",
    "\
EXAMPLES
  statepact fence jobs/7
  statepact --json fence jobs/7 | jq .mark",
);

pub(crate) const GUARD: Help = (
    "\
Check that a token is not stale: that its resource has no newer one. It says what was so when the \
store looked; to make a write safe, carry the token in it (`statepact set --fence`). A lease that has \
merely expired passes.

Exit status: 4 if the resource has a newer token, else 0: also for a token that was never issued.",
    "\
EXAMPLES
  statepact guard jobs/7 --token 12 || exit
  statepact guard \"$STATEPACT_RESOURCE\" --token \"$STATEPACT_TOKEN\" && upload",
);

pub(crate) const GET: Help = (
    "\
Print the state of a resource as a JSON object, or one field of it as JSON; indented on a terminal. \
With --json the version is told as well.

Exit status: 1 if the resource or the field does not exist.",
    "\
EXAMPLES
  statepact get jobs/7
  statepact get jobs/7 state
  statepact --json get jobs/7 | jq .version",
);

pub(crate) const SET: Help = (
    "\
Write fields of a resource in one atomic, durable step. The store and the resource are created if \
they do not exist; with --fence the store must exist. Values are JSON, so a string needs quotes of its own: name='\"Ada\"'. With --fence N \
the write is refused if the resource (or --fence-resource) has a newer token.

Exit status: 4 if the fence is stale; 5 if --if-version does not hold; 1 if the resource requires a \
fence and none was given.",
    "\
EXAMPLES
  statepact set jobs/7 state='\"running\"' tries=3
  statepact set jobs/7 state='\"done\"' --fence 12
  statepact set orders/7 paid=true --fence 12 --fence-resource jobs/42
  statepact set jobs/7 tries=4 --if-version 9
  statepact set jobs/7 --require-fence true",
);

pub(crate) const RM: Help = (
    "\
Delete a resource, or only the named fields of it. Deleting what is not there changes nothing. The \
mark of a resource outlives it: a token is never issued twice.

Exit status: 0 also when there was nothing to delete; 4 if the fence is stale; 5 if --if-version does \
not hold.",
    "\
EXAMPLES
  statepact rm jobs/7 tries
  statepact rm jobs/7 --fence 12",
);

pub(crate) const LS: Help = (
    "\
List the resources of the store, with version, number of fields, mark and last lease; those whose \
names begin with PREFIX if one is given. With --json one object a line.

Exit status: 0, also when there is nothing to list.",
    "\
EXAMPLES
  statepact ls
  statepact ls jobs/
  statepact --json ls | jq -r 'select(.lease_state == \"live\") | .resource'",
);

pub(crate) const LOG: Help = (
    "\
Print the history of the store, oldest first: leases acquired, released and revoked, and commits with \
what they wrote. Renewals are not events. With --json one object a line. --follow goes on until it is \
interrupted.

Exit status: 1 if the events after --after N have been pruned.",
    "\
EXAMPLES
  statepact log --resource jobs/7
  statepact log --follow
  statepact --json log --after 120 | jq -c '[.sequence, .event]'",
);

pub(crate) const CHECK: Help = (
    "\
Verify everything that the store holds: every checksum, and that its parts agree. It changes nothing.

Exit status: 7 if the store is damaged; the message says where.",
    "\
EXAMPLES
  statepact check
  statepact --json --store /var/lib/jobs.redb check",
);

pub(crate) const COPY: Help = (
    "\
Copy everything of one store into another, whatever their kinds: resources and their versions, marks, \
leases with the time that they have left, and the history as far as it is kept, if TO has none of its \
own. TO is created if it does not exist; a resource that TO holds already and that differs is refused, \
unless --merge newer. --store is not used.

FROM may be in use meanwhile. A token that TO issues is above all that FROM had issued when it was last \
looked at: let --follow catch up, end the work on FROM, stop --follow, and go on with TO. A new file TO \
appears when the copy is whole, and is beside it as .NAME.copying until then; on a server nobody may work \
with TO before that. An interrupted copy is run again; what is there already is left. Commit ids are not copied.

Exit status: 1 if TO holds something else under the same name; 128 + 2 if it was interrupted before all \
was copied.",
    "\
EXAMPLES
  statepact copy ./statepact.redb /srv/jobs.redb
  statepact copy ./statepact.redb /srv/jobs.redb --follow
  statepact copy old.redb new.redb --merge newer
  statepact copy ./statepact.redb postgres://db.example/app --follow",
);

pub(crate) const COMPLETIONS: Help = (
    "\
Print the completions of the command for a shell, to be put where the shell looks for them.

Exit status: 2 for a shell that is not known.",
    "\
EXAMPLES
  statepact completions bash > ~/.local/share/bash-completion/completions/statepact
  statepact completions zsh > \"${fpath[1]}/_statepact\"
  statepact completions fish > ~/.config/fish/completions/statepact.fish",
);
