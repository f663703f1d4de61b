//! What lies in the keys: exact tokens, no expiry, stores that do not touch
//! each other, and damage that is found (R1, R29).

use std::sync::Arc;

use statepact::backend::memory::Memory;
use statepact::backend::redis::{Redis, RedisOptions};
use statepact::backend::{Backend, Fence};
use statepact::{ErrorKind, LossReason, Token};

use crate::server::Server;
use crate::support::{
    Env, Tested, case_list, ensure, fails, lease, private, put, res, same, set, set_with_id, value,
};

case_list! { "stored":
    tokens_are_stored_exactly_above_2_to_the_53,
    no_key_has_an_expiry,
    prefixes_with_braces_and_blanks_are_stores_of_their_own,
    a_damaged_key_is_corrupt_and_named,
    a_write_refused_for_damage_changes_nothing,
    an_evicted_mark_is_corrupt_and_not_begun_again,
    a_damaged_history_is_corrupt,
    another_format_is_not_touched,
    history_is_pruned_as_in_memory,
    a_state_over_64_mebibytes_is_refused,
    two_handles_count_together,
    time_never_runs_back,
}

async fn tokens_are_stored_exactly_above_2_to_the_53(env: Env) -> Tested {
    let prefix = crate::new_prefix();
    let store = env.options().prefix(&prefix).open().await?;
    let fence = |token: u64| {
        Ok::<_, statepact::Error>(Fence {
            resource: res("job"),
            token: Token::new(token)?,
            must_be_live: false,
        })
    };
    let mut commit = set("job", "1");
    commit.fences.push(fence(9_007_199_254_740_993)?);
    store.commit(&commit).await?;
    commit.fences = vec![fence(9_007_199_254_740_992)?];
    match store.commit(&commit).await {
        Err(statepact::Error::LeaseLost {
            reason: LossReason::Superseded { by },
            ..
        }) => same("the mark", by.get(), 9_007_199_254_740_993)?,
        other => return Err(format!("{other:?}").into()),
    }
    let key = format!("{{{prefix}}}:fence:job");
    let stored = env.server.done(&[
        "EVAL",
        "return 'x'..redis.call('GET', KEYS[1])..'x'",
        "1",
        &key,
    ])?;
    // The first line is the length of what follows.
    same("the stored text's length", stored, "$18".to_owned())?;
    same(
        "the next",
        lease(&store, "job", "a").await?.token.get(),
        9_007_199_254_740_994,
    )?;
    for nines in [
        9_u64,
        99,
        999_999_999,
        9_999_999_999,
        999_999_999_999_999_999,
    ] {
        let name = nines.to_string();
        commit.fences = vec![Fence {
            resource: res(&name),
            ..fence(nines)?
        }];
        store.commit(&commit).await?;
        same(
            "after nines",
            lease(&store, &name, "a").await?.token.get(),
            nines + 1,
        )?;
    }
    Ok(())
}

/// A store with every kind of key in it.
async fn full(server: &Server) -> Result<Redis, crate::server::Failure> {
    let store = Redis::open(&server.url()).await?;
    let taken = lease(&store, "a", "o").await?;
    store.release(&taken).await?;
    lease(&store, "a", "o").await?;
    for at in 0..5 {
        store.commit(&set_with_id("a", &at.to_string(), at)).await?;
    }
    put(&store, "b", "1").await?;
    Ok(store)
}

async fn no_key_has_an_expiry(_: Env) -> Tested {
    let server = private(&[])?;
    let _store = full(&server).await?;
    let count = "local n = 0
        for _, key in ipairs(redis.call('KEYS', '*')) do
          if redis.call('TTL', key) ~= -1 then return redis.error_reply('EXPIRES ' .. key) end
          n = n + 1
        end
        return n";
    // meta, log, ids, receipts, names, known; a's three and b's state.
    same(
        "the keys",
        server.done(&["EVAL", count, "0"])?,
        ":10".to_owned(),
    )
}

async fn prefixes_with_braces_and_blanks_are_stores_of_their_own(env: Env) -> Tested {
    let mut stores = Vec::new();
    for prefix in [
        "{", "}", "{}", "{a}", "a", "a:lease", "%7B", "a b", "é*?[", ":",
    ] {
        let options = RedisOptions::new(env.server.url()).prefix(prefix);
        stores.push((prefix, options.open().await?));
    }
    for (prefix, store) in &stores {
        store.commit(&set("}{ *x", &format!("{prefix:?}"))).await?;
        same("the only resource", store.list("", None, 9).await?.len(), 1)?;
    }
    for (prefix, store) in &stores {
        same(
            "its value",
            value(store, "}{ *x").await?,
            Some(format!("{prefix:?}")),
        )?;
        same("the history", store.events(0, 9).await?.newest, 1)?;
    }
    Ok(())
}

async fn a_damaged_key_is_corrupt_and_named(_: Env) -> Tested {
    let damages: &[(&[&str], &str)] = &[
        (&["SET", "{statepact}:fence:a", "x"], "fence:a"),
        (&["SET", "{statepact}:fence:a", "0"], "fence:a"),
        (
            &["SET", "{statepact}:fence:a", "9223372036854775808"],
            "fence:a",
        ),
        (&["SET", "{statepact}:fence:a", "1e3"], "fence:a"),
        (&["SET", "{statepact}:fence:a", "1"], "fence:a"),
        (&["DEL", "{statepact}:fence:a"], "fence:a"),
        (&["SET", "{statepact}:lease:a", "x"], "lease:a"),
        (&["HDEL", "{statepact}:lease:a", "owner"], "lease:a"),
        (&["HSET", "{statepact}:lease:a", "token", "-1"], "lease:a"),
        (
            &["HSET", "{statepact}:lease:a", "expires", "soon"],
            "lease:a",
        ),
        (&["HSET", "{statepact}:lease:a", "ttl", "0"], "lease:a"),
        (&["SET", "{statepact}:state:a", "x"], "state:a"),
        (&["HSET", "{statepact}:state:a", "version", "x"], "state:a"),
        (&["HDEL", "{statepact}:state:a", "version"], "state:a"),
        (&["HSET", "{statepact}:state:a", "f:x", "{"], "state:a"),
        (&["HSET", "{statepact}:state:a", "f:x", "10"], "state:a"),
        (&["HDEL", "{statepact}:state:a", "f:x"], "state:a"),
        (&["HDEL", "{statepact}:state:a", "v:x"], "state:a"),
        (&["HSET", "{statepact}:state:a", "v:x", "77"], "state:a"),
        (&["HSET", "{statepact}:state:a", "else", "1"], "state:a"),
        (&["ZREM", "{statepact}:names", "a"], "names"),
        (&["SET", "{statepact}:names", "x"], "names"),
        (&["SET", "{statepact}:meta", "x"], "meta"),
        (&["HSET", "{statepact}:meta", "sequence", "x"], "meta"),
        (&["HSET", "{statepact}:meta", "clock", "x"], "meta"),
        (&["HDEL", "{statepact}:meta", "oldest"], "meta"),
        (
            &[
                "HDEL",
                "{statepact}:receipts",
                "00000000000000000000000000000003",
            ],
            "receipts",
        ),
        (
            &[
                "HSET",
                "{statepact}:receipts",
                "00000000000000000000000000000003",
                "[",
            ],
            "receipts",
        ),
        (&["SET", "{statepact}:log", "x"], "log"),
    ];
    let server = private(&[])?;
    for (damage, key) in damages {
        server.done(&["FLUSHALL"])?;
        let store = full(&server).await?;
        store.check(&|_| {}).await?;
        server.done(damage)?;
        let answer = store.check(&|_| {}).await;
        fails(&format!("{damage:?}"), answer, ErrorKind::Corrupt, key)?;
        // Whatever else is asked: the right answer or a typed error.
        let reads = store.read(&[res("a")]).await;
        if key.starts_with("state") && !damage.contains(&"else") {
            fails(
                &format!("a read after {damage:?}"),
                reads,
                ErrorKind::Corrupt,
                key,
            )?;
        }
        let taken = lease(&store, "a", "p").await;
        ensure(&format!("{taken:?} after {damage:?}"), taken.is_err())?;
    }
    Ok(())
}

/// R20: damage that a write meets late would leave half of it.
async fn a_write_refused_for_damage_changes_nothing(_: Env) -> Tested {
    let server = private(&["--enable-debug-command", "yes"])?;
    let store = full(&server).await?;
    // Of all keys and what is in them, whatever its order.
    let digest = || server.done(&["DEBUG", "DIGEST"]);
    for name in ["log", "ids", "receipts", "names", "known"] {
        let key = format!("{{statepact}}:{name}");
        server.done(&["RENAME", &key, "aside"])?;
        server.done(&["SET", &key, "x"])?;
        let before = digest()?;
        let mut commit = set_with_id("new", "1", 99);
        commit.fences.push(Fence {
            resource: res("new"),
            token: Token::MIN,
            must_be_live: false,
        });
        let answer = store.commit(&commit).await;
        fails(name, answer, ErrorKind::Corrupt, name)?;
        fails(
            name,
            lease(&store, "b", "o").await,
            ErrorKind::Corrupt,
            name,
        )?;
        same(name, digest()?, before)?;
        server.done(&["RENAME", "aside", &key])?;
    }
    store.check(&|_| {}).await?;
    Ok(())
}

/// R1: to go on from nothing would issue old tokens again.
async fn an_evicted_mark_is_corrupt_and_not_begun_again(_: Env) -> Tested {
    let server = private(&[])?;
    let store = full(&server).await?;
    server.done(&["DEL", "{statepact}:fence:a"])?;
    let mut stale = set("a", "1");
    stale.fences.push(Fence {
        resource: res("a"),
        token: Token::MIN,
        must_be_live: false,
    });
    fails(
        "a fence",
        store.commit(&stale).await,
        ErrorKind::Corrupt,
        "evicted",
    )?;
    fails(
        "a lease",
        lease(&store, "a", "p").await,
        ErrorKind::Corrupt,
        "evicted",
    )?;
    fails(
        "a revocation",
        store.revoke(&res("a")).await,
        ErrorKind::Corrupt,
        "evicted",
    )?;
    fails(
        "the mark",
        store.current_fence(&res("a")).await,
        ErrorKind::Corrupt,
        "evicted",
    )
}

async fn a_damaged_history_is_corrupt(_: Env) -> Tested {
    let server = private(&[])?;
    for (damage, says) in [
        (&["XDEL", "{statepact}:log", "4-0"][..], "missing"),
        (&["XTRIM", "{statepact}:log", "MAXLEN", "2"], "missing"),
        (&["XDEL", "{statepact}:log", "9-0"], "ends"),
        (&["DEL", "{statepact}:log"], "ends"),
    ] {
        server.done(&["FLUSHALL"])?;
        let store = full(&server).await?;
        same("the newest", store.events(0, 100).await?.newest, 9)?;
        server.done(damage)?;
        fails(
            "the history",
            store.events(0, 100).await,
            ErrorKind::Corrupt,
            says,
        )?;
        fails(
            "the check",
            store.check(&|_| {}).await,
            ErrorKind::Corrupt,
            says,
        )?;
    }
    // An event that this store does not know of: nothing is written after it.
    let store = Redis::open(&server.url()).await?;
    server.done(&["FLUSHALL"])?;
    put(&store, "a", "1").await?;
    server.done(&["XADD", "{statepact}:log", "9-0", "event", "{}"])?;
    fails(
        "a commit",
        put(&store, "a", "2").await,
        ErrorKind::Corrupt,
        "log",
    )?;
    same("the value", value(&store, "a").await?, Some("1".to_owned()))?;
    fails(
        "the history",
        store.events(1, 9).await,
        ErrorKind::Corrupt,
        "log",
    )?;
    server.done(&["FLUSHALL"])?;
    put(&store, "a", "1").await?;
    server.done(&["XADD", "{statepact}:ids", "9-0", "id", "x"])?;
    let answer = store.commit(&set_with_id("a", "2", 1)).await;
    fails("a commit", answer, ErrorKind::Corrupt, "ids")?;
    same("the newest", store.events(0, 9).await?.newest, 1)
}

async fn another_format_is_not_touched(_: Env) -> Tested {
    let server = private(&[])?;
    let store = full(&server).await?;
    server.done(&["HSET", "{statepact}:meta", "format", "2"])?;
    let format = "its format is not 1";
    fails(
        "opening",
        Redis::open(&server.url()).await,
        ErrorKind::Corrupt,
        format,
    )?;
    fails(
        "a read",
        store.read(&[res("a")]).await,
        ErrorKind::Corrupt,
        format,
    )?;
    fails(
        "a commit",
        put(&store, "a", "9").await,
        ErrorKind::Corrupt,
        format,
    )
}

async fn two_handles_count_together(env: Env) -> Tested {
    const EACH: u64 = 40;
    let options = env.options();
    let first = options.clone().open().await?;
    put(&first, "n", "0").await?;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let store: Arc<dyn Backend> = Arc::new(options.clone().open().await?);
        tasks.push(tokio::spawn(async move {
            let manager = statepact::StateManager::new(store);
            let policy = statepact::RetryPolicy::default().attempts(10_000);
            for _ in 0..EACH {
                let counting = manager.session("s").resource("n");
                counting
                    .transact(policy, async |session| {
                        let n: u64 = session.read("n", "x").await?.unwrap_or(0);
                        session.write("n", "x", &(n + 1))
                    })
                    .await?;
            }
            Ok::<_, statepact::Error>(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    same(
        "the count",
        value(&first, "n").await?,
        Some((4 * EACH).to_string()),
    )
}

/// R11: a server whose clock was set back stands still until it has caught up.
async fn time_never_runs_back(_: Env) -> Tested {
    let server = private(&[])?;
    let store = Redis::open(&server.url()).await?;
    put(&store, "a", "1").await?;
    let now = store.now().await?;
    // As if the server's clock had been a day ahead when it last wrote.
    let ahead = (now.as_millis() + 86_400_000).to_string();
    server.done(&["HSET", "{statepact}:meta", "clock", &ahead])?;
    same(
        "the time",
        store.now().await?.as_millis().to_string(),
        ahead.clone(),
    )?;
    put(&store, "a", "2").await?;
    let events = store.events(1, 1).await?.events;
    let at = events.first().map(|event| event.at.as_millis().to_string());
    same("the event's time", at, Some(ahead))
}

/// What of the history is left, and which ids are remembered, call by call
/// (R26, R30).
async fn history_is_pruned_as_in_memory(env: Env) -> Tested {
    const KEPT: u64 = 20;
    let prefix = crate::new_prefix();
    let options = env.options().prefix(&prefix).history(KEPT);
    let store = options.open().await?;
    let memory =
        Memory::with_clock_and_history(Arc::new(statepact::clock::ManualClock::new()), KEPT);
    let both: [&dyn Backend; 2] = [&store, &memory];
    for at in 1..=75_u64 {
        let mut answers = Vec::new();
        for backend in both {
            if at % 3 == 0 {
                let name = format!("r{at}");
                backend.commit(&set(&name, "1")).await?;
                backend.revoke(&res(&name)).await?;
            }
            let first = backend
                .commit(&set_with_id("a", "1", u128::from(at)))
                .await?;
            // Sent again: the same answer, or, once forgotten, a new commit.
            let old = u128::from(at.saturating_sub(16));
            let again = backend.commit(&set_with_id("a", "1", old)).await?;
            let history = backend.events(0, 1).await.map(|page| page.newest);
            answers.push(format!("{first:?} {again:?} {history:?}"));
        }
        let in_memory = answers.pop();
        same(&format!("step {at}"), answers.pop(), in_memory)?;
    }
    // What is forgotten takes no room.
    for (count, name) in [("XLEN", "log"), ("XLEN", "ids"), ("HLEN", "receipts")] {
        let found = env.server.done(&[count, &format!("{{{prefix}}}:{name}")])?;
        let found: u64 = found.trim_start_matches(':').parse()?;
        ensure(
            &format!("{name} has {found}"),
            (1..=2 * KEPT).contains(&found),
        )?;
    }
    store.check(&|_| {}).await?;
    Ok(())
}

async fn a_state_over_64_mebibytes_is_refused(env: Env) -> Tested {
    let prefix = crate::new_prefix();
    let store = env.options().prefix(&prefix).open().await?;
    put(&store, "a", "1").await?;
    // As if other fields had all but a few bytes.
    let key = format!("{{{prefix}}}:state:a");
    let limit = 64 << 20;
    let nearly = (limit - 5).to_string();
    env.server.done(&["HSET", &key, "bytes", &nearly])?;
    // One byte goes, and seven come.
    let answer = put(&store, "a", "1234567").await;
    let says = (limit + 1).to_string();
    fails("one byte more", answer, ErrorKind::InvalidArgument, &says)?;
    put(&store, "a", "123456").await?;
    Ok(())
}
