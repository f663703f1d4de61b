//! Servers that are set up otherwise than they should be, and users that may
//! not do all.

use std::time::Duration;

use statepact::backend::redis::{Redis, RedisOptions};
use statepact::backend::{Backend, Change};
use statepact::{Error, ErrorKind};

use crate::server::Server;
use crate::support::{
    Env, LONG, Tested, case_list, ensure, fails, lease, private, put, same, set_with_id, until,
    value,
};

case_list! { "settings":
    a_server_in_order_is_not_warned_of,
    a_server_that_evicts_marks_is_refused_unless_allowed,
    a_server_without_persistence_is_warned_of,
    a_wrong_password_is_refused_with_what_to_do,
    a_user_without_config_is_warned_of,
    a_user_who_lacks_a_command_is_refused_before_anything_is_done,
    the_documented_permissions_are_enough,
    a_user_who_may_not_publish_is_warned_of_and_works,
    a_full_server_refuses_writes_and_changes_nothing,
    a_replica_is_unavailable_for_writes,
    a_server_that_runs_a_long_script_is_busy,
    databases_and_sockets_are_taken_from_the_url,
    a_server_is_reached_by_tls_when_its_certificate_is_trusted,
}

async fn a_server_in_order_is_not_warned_of(env: Env) -> Tested {
    let store = env.options().open().await?;
    same("the warnings", store.warnings(), Vec::new())
}

async fn a_server_that_evicts_marks_is_refused_unless_allowed(_: Env) -> Tested {
    for policy in ["allkeys-lru", "allkeys-lfu", "allkeys-random"] {
        let server = private(&["--maxmemory-policy", policy])?;
        let answer = Redis::open(&server.url()).await;
        fails("opening", answer, ErrorKind::Storage, "noeviction")?;
        let url = format!("{}?allow_eviction=true", server.url());
        let store = Redis::open(&url).await?;
        let warnings = store.warnings().concat();
        ensure(&warnings, warnings.contains(policy))?;
    }
    let server = private(&["--maxmemory-policy", "volatile-lru"])?;
    same(
        "warnings of a policy that evicts what has an expiry",
        Redis::open(&server.url()).await?.warnings(),
        Vec::new(),
    )
}

async fn a_server_without_persistence_is_warned_of(_: Env) -> Tested {
    let server = Server::start_with("redis-server", &[])?;
    let warnings = Redis::open(&server.url()).await?.warnings().concat();
    ensure(&warnings, warnings.contains("no persistence"))?;
    let server = Server::start_with("redis-server", &["--save", "3600 1"])?;
    let warnings = Redis::open(&server.url()).await?.warnings();
    same("warnings of snapshots", warnings, Vec::new())
}

async fn a_wrong_password_is_refused_with_what_to_do(_: Env) -> Tested {
    let server = private(&["--requirepass", "secret word"])?;
    let at = format!("127.0.0.1:{}", server.port());
    for url in [
        format!("redis://{at}"),
        format!("redis://:wrong@{at}"),
        format!("redis://nobody:secret%20word@{at}"),
    ] {
        let answer = Redis::open(&url).await;
        if let Err(error) = &answer {
            ensure("no retry", !error.is_retryable())?;
            ensure("no password in it", !error.to_string().contains("wrong@"))?;
        }
        fails(&url, answer, ErrorKind::Storage, "USER:PASSWORD")?;
    }
    let store = Redis::open(&format!("redis://:secret%20word@{at}")).await?;
    put(&store, "a", "1").await?;
    Ok(())
}

/// A server with a user `u` of password `p` who has these permissions, and the
/// URL to be that user.
fn with_user(permissions: &[&str]) -> Result<(Server, String), crate::server::Failure> {
    let server = private(&[])?;
    server.done(&[&["ACL", "SETUSER", "u", "on", ">p"][..], permissions].concat())?;
    let url = format!("redis://u:p@127.0.0.1:{}", server.port());
    Ok((server, url))
}

async fn a_user_without_config_is_warned_of(_: Env) -> Tested {
    let (_server, url) = with_user(&["~{statepact}:*", "&*", "+@all", "-config", "-info"])?;
    let store = Redis::open(&url).await?;
    let warnings = store.warnings();
    same("the number of warnings", warnings.len(), 2)?;
    ensure(
        "each says what to look at",
        warnings.iter().all(|warning| warning.contains("see that")),
    )?;
    put(&store, "a", "1").await?;
    Ok(())
}

async fn a_user_who_lacks_a_command_is_refused_before_anything_is_done(_: Env) -> Tested {
    for (permissions, says) in [
        (&["~*", "&*", "+@all", "-xtrim"][..], "XTRIM"),
        (&["~*", "&*", "+@all", "-set"], "SET"),
        (&["~{statepact}:state:*", "&*", "+@all"], ""),
        (&["~{other}:*", "&*", "+@all"], ""),
        (&["~*", "&*", "+@all", "-@scripting"], "evalsha"),
    ] {
        let (server, url) = with_user(permissions)?;
        let answer = Redis::open(&url).await;
        fails(
            &format!("{permissions:?}"),
            answer,
            ErrorKind::Storage,
            says,
        )?;
        same("the keys", server.done(&["DBSIZE"])?, ":0".to_owned())?;
    }
    Ok(())
}

async fn the_documented_permissions_are_enough(_: Env) -> Tested {
    let page = include_str!("../../docs/redis-keys.md");
    let (_, block) = page.split_once("```text\n").ok_or("no block")?;
    let (block, _) = block.split_once("```").ok_or("no end of the block")?;
    let words: Vec<&str> = block.split_ascii_whitespace().collect();
    let server = private(&[])?;
    server.done(&words)?;
    let at = format!("127.0.0.1:{}", server.port());
    let store = Redis::open(&format!("redis://worker:PASSWORD@{at}")).await?;
    same("the warnings", store.warnings(), Vec::new())?;
    // History is pruned, and every kind of call is made.
    let store = RedisOptions::new(format!("redis://worker:PASSWORD@{at}"))
        .history(3)
        .open()
        .await?;
    for at in 0..10 {
        let taken = lease(&store, "job", "a").await?;
        store.renew(&taken, taken.ttl).await?;
        let mut commit = set_with_id("job", "1", at);
        commit.fences.push(taken.fence());
        store.commit(&commit).await?;
        store.revoke(&taken.resource).await?;
        let mut deletion = commit.clone();
        deletion.id = None;
        deletion.fences.clear();
        for write in &mut deletion.writes {
            write.change = Change::Delete;
        }
        store.commit(&deletion).await?;
    }
    same(
        "a released lease",
        {
            let taken = lease(&store, "job", "a").await?;
            store.release(&taken).await?
        },
        true,
    )?;
    store.list("", None, 9).await?;
    store.check(&|_| {}).await?;
    let held = lease(&store, "job", "a").await?;
    let _waiting = store.waiters();
    until("the subscription", async || {
        let channel = "{statepact}:released";
        let count = "return redis.call('PUBSUB', 'NUMSUB', ARGV[1])[2]";
        Ok(server.done(&["EVAL", count, "0", channel])? == ":1")
    })
    .await?;
    ensure("the last release", store.release(&held).await?)
}

async fn a_user_who_may_not_publish_is_warned_of_and_works(_: Env) -> Tested {
    let (_server, url) = with_user(&["~{statepact}:*", "+@all"])?;
    let store = Redis::open(&url).await?;
    let warnings = store.warnings().concat();
    ensure(&warnings, warnings.contains("publish"))?;
    let taken = lease(&store, "job", "a").await?;
    ensure("the release", store.release(&taken).await?)?;
    ensure("it is done once", !store.release(&taken).await?)?;
    store.revoke(&taken.resource).await?;
    same("the next", lease(&store, "job", "b").await?.token.get(), 3)
}

async fn a_full_server_refuses_writes_and_changes_nothing(_: Env) -> Tested {
    let server = private(&[])?;
    let store = Redis::open(&server.url()).await?;
    let taken = lease(&store, "job", "a").await?;
    put(&store, "a", "1").await?;
    server.done(&["CONFIG", "SET", "maxmemory", "1"])?;
    let newest = store.events(0, 1).await?.newest;
    let full = "maxmemory";
    fails(
        "a commit",
        put(&store, "a", "2").await,
        ErrorKind::Storage,
        full,
    )?;
    fails(
        "a lease",
        lease(&store, "b", "a").await,
        ErrorKind::Storage,
        full,
    )?;
    fails(
        "a renewal",
        store.renew(&taken, taken.ttl).await,
        ErrorKind::Storage,
        full,
    )?;
    fails(
        "a release",
        store.release(&taken).await,
        ErrorKind::Storage,
        full,
    )?;
    same("the value", value(&store, "a").await?, Some("1".to_owned()))?;
    same("the history", store.events(0, 1).await?.newest, newest)?;
    server.done(&["CONFIG", "SET", "maxmemory", "0"])?;
    store.check(&|_| {}).await?;
    ensure("the release", store.release(&taken).await?)
}

async fn a_replica_is_unavailable_for_writes(_: Env) -> Tested {
    let (primary, replica) = (private(&[])?, private(&[])?);
    let first = Redis::open(&primary.url()).await?;
    put(&first, "a", "1").await?;
    replica.done(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()])?;
    let copy = RedisOptions::new(replica.url());
    // Reads work once it has caught up; it says so until then.
    until("the replica has the value", async || {
        match copy.clone().open().await {
            Ok(store) => Ok(value(&store, "a").await.ok().flatten().is_some()),
            Err(Error::Unavailable { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    })
    .await?;
    let store = copy.open().await?;
    fails(
        "a commit",
        put(&store, "a", "2").await,
        ErrorKind::Unavailable,
        "READONLY",
    )?;
    same("the value", value(&store, "a").await?, Some("1".to_owned()))?;
    // When it has become the primary, the same handle goes on.
    replica.done(&["REPLICAOF", "NO", "ONE"])?;
    put(&store, "a", "2").await?;
    Ok(())
}

async fn a_server_that_runs_a_long_script_is_busy(_: Env) -> Tested {
    let server = std::sync::Arc::new(private(&["--busy-reply-threshold", "20"])?);
    let store = RedisOptions::new(server.url()).timeout(LONG).open().await?;
    let running = {
        let server = server.clone();
        std::thread::spawn(move || server.command(&["EVAL", "while true do end", "0"]))
    };
    until("it is busy", async || {
        Ok(matches!(
            put(&store, "a", "1").await,
            Err(Error::Busy { .. })
        ))
    })
    .await?;
    server.done(&["SCRIPT", "KILL"])?;
    let _ = running.join().map_err(|_| "panicked")??;
    put(&store, "a", "1").await?;
    Ok(())
}

async fn databases_and_sockets_are_taken_from_the_url(_: Env) -> Tested {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("s");
    let socket = socket.to_str().ok_or("not UTF-8")?;
    let server = private(&["--unixsocket", socket])?;
    let third = Redis::open(&format!("{}/3", server.url())).await?;
    put(&third, "a", "3").await?;
    let none = Redis::open(&server.url()).await?;
    same("another database", value(&none, "a").await?, None)?;
    let options = RedisOptions::new(format!("redis+unix://{socket}?db=3&prefix=statepact"));
    let store = options.timeout(Duration::from_secs(30)).open().await?;
    same(
        "by the socket",
        value(&store, "a").await?,
        Some("3".to_owned()),
    )?;
    let opened = statepact::backend::open(&format!("valkey+unix://{socket}?db=3")).await?;
    same(
        "by the crate's own opening",
        opened.events(0, 1).await?.newest,
        1,
    )?;
    let refused = statepact::backend::open(&format!("{}?frobnicate=1", server.url())).await;
    fails(
        "no option",
        refused,
        ErrorKind::InvalidArgument,
        "frobnicate",
    )
}

/// An authority, a certificate of it for `localhost`, and a stranger.
fn make_certificates(folder: &std::path::Path) -> Tested {
    let openssl = |arguments: &str| {
        let made = std::process::Command::new("openssl")
            .args(arguments.split_ascii_whitespace())
            .current_dir(folder)
            .output()?;
        ensure(
            &String::from_utf8_lossy(&made.stderr),
            made.status.success(),
        )
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for authority in ["authority", "stranger"] {
        openssl(&format!(
            "req -x509 {key} -days 2 -keyout {authority}.key -out {authority}.crt -subj /CN={authority}"
        ))?;
    }
    openssl(&format!(
        "req {key} -keyout server.key -out server.csr -subj /CN=localhost"
    ))?;
    std::fs::write(folder.join("names"), "subjectAltName=DNS:localhost\n")?;
    openssl(
        "x509 -req -in server.csr -CA authority.crt -CAkey authority.key -CAcreateserial \
         -days 2 -extfile names -out server.crt",
    )
}

async fn a_server_is_reached_by_tls_when_its_certificate_is_trusted(_: Env) -> Tested {
    let folder = tempfile::tempdir()?;
    make_certificates(folder.path())?;
    let file = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let _server = private(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &file("server.crt"),
        "--tls-key-file",
        &file("server.key"),
        "--tls-ca-cert-file",
        &file("authority.crt"),
        "--tls-auth-clients",
        "no",
    ])?;
    let url = format!("rediss://localhost:{port}");
    let store = RedisOptions::new(&url)
        .ca_file(file("authority.crt"))
        .open()
        .await?;
    put(&store, "a", "1").await?;
    same("the value", value(&store, "a").await?, Some("1".to_owned()))?;
    for (what, url) in [
        ("an authority that this machine does not know", url.clone()),
        (
            "another authority",
            format!("{url}?ca_file={}", file("stranger.crt")),
        ),
        (
            "another name than the certificate's",
            format!(
                "rediss://127.0.0.1:{port}?ca_file={}",
                file("authority.crt")
            ),
        ),
    ] {
        fails(
            what,
            Redis::open(&url).await,
            ErrorKind::Storage,
            "certificate",
        )?;
    }
    Ok(())
}
