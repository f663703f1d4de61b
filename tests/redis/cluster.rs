//! Real cluster nodes: all keys of a store are in one slot.

use statepact::ErrorKind;
use statepact::backend::Backend;
use statepact::backend::redis::{Redis, RedisOptions};

use crate::server::{Failure, Server};
use crate::support::{
    Env, Tested, case_list, fails, lease, private, put, res, same, set, until, value,
};

case_list! { "cluster":
    every_operation_works_on_a_node,
    another_nodes_slot_is_refused_with_what_to_do,
    a_slot_that_nobody_serves_is_unavailable,
}

async fn ready(node: &Server) -> Tested {
    until("the cluster is complete", async || {
        // An answer about a key of the node, whatever it is, but not that the
        // cluster is down.
        Ok(!node.command(&["GET", "x"])?.contains("CLUSTERDOWN"))
    })
    .await
}

fn slot_of(node: &Server, prefix: &str) -> Result<u16, Failure> {
    let key = format!("{{{prefix}}}:meta");
    let answer = node.done(&["CLUSTER", "KEYSLOT", &key])?;
    Ok(answer.trim_start_matches(':').parse()?)
}

async fn every_operation_works_on_a_node(_: Env) -> Tested {
    let node = private(&["--cluster-enabled", "yes"])?;
    node.done(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])?;
    ready(&node).await?;
    let store = Redis::open(&node.url()).await?;
    let taken = lease(&store, "job {1}", "a").await?;
    let taken = store.renew(&taken, taken.ttl).await?;
    // Resources that would be in different slots by themselves.
    let mut commit = set("{a}", "1");
    for name in ["{b}", "c", "}d{", "job {1}"] {
        commit.writes.extend(set(name, "1").writes);
    }
    commit.fences.push(taken.fence());
    let receipt = store.commit(&commit).await?;
    same("the versions", receipt.versions.len(), 5)?;
    let states = store
        .read(&[res("{a}"), res("{b}"), res("c"), res("e")])
        .await?;
    same("the states", states.iter().flatten().count(), 3)?;
    same("the list", store.list("", None, 9).await?.len(), 5)?;
    same("the release", store.release(&taken).await?, true)?;
    same(
        "the revocation",
        store.revoke(&taken.resource).await?.get(),
        2,
    )?;
    let ownership = store.lease_status(&taken.resource).await?;
    same(
        "the mark",
        ownership.mark.map(statepact::Token::get),
        Some(2),
    )?;
    same("the events", store.events(0, 9).await?.events.len(), 4)?;
    same("the check", store.check(&|_| {}).await?.resources, 5)
}

async fn another_nodes_slot_is_refused_with_what_to_do(_: Env) -> Tested {
    let settings = ["--cluster-enabled", "yes"];
    let (low, high) = (private(&settings)?, private(&settings)?);
    low.done(&["CLUSTER", "ADDSLOTSRANGE", "0", "8191"])?;
    high.done(&["CLUSTER", "ADDSLOTSRANGE", "8192", "16383"])?;
    high.done(&["CLUSTER", "SET-CONFIG-EPOCH", "2"])?;
    low.done(&["CLUSTER", "MEET", "127.0.0.1", &high.port().to_string()])?;
    ready(&low).await?;
    ready(&high).await?;
    for prefix in ["statepact", "a", "b", "c", "d"] {
        let (here, there) = if slot_of(&low, prefix)? < 8192 {
            (&low, &high)
        } else {
            (&high, &low)
        };
        let store = RedisOptions::new(here.url()).prefix(prefix).open().await?;
        put(&store, "x", "1").await?;
        let answer = RedisOptions::new(there.url()).prefix(prefix).open().await;
        let address = format!("127.0.0.1:{}", here.port());
        fails(
            "the other node",
            answer,
            ErrorKind::InvalidArgument,
            &address,
        )?;
        same("the value", value(&store, "x").await?, Some("1".to_owned()))?;
    }
    Ok(())
}

async fn a_slot_that_nobody_serves_is_unavailable(_: Env) -> Tested {
    let node = private(&["--cluster-enabled", "yes"])?;
    let answer = Redis::open(&node.url()).await;
    fails("opening", answer, ErrorKind::Unavailable, "CLUSTERDOWN")
}
