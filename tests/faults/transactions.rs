//! What only PostgreSQL does: transactions left open, and those that it ends
//! for the sake of others.

use std::sync::Arc;
use std::time::Duration;

use statepact::backend::Backend;
use statepact::backend::postgres::Postgres;
use statepact::{Error, Result, RetryPolicy, StateManager};
use tokio_postgres::{Client, NoTls};

use crate::postgres_server::{ROLE, Server};
use crate::support::{acquire, commit, res, until, within, write};

/// Far below the time after which the server itself ends such a transaction.
const SOON: Duration = Duration::from_secs(12);

/// Looks at the server's sessions from one of its own.
pub(crate) struct Sessions(Client);

impl Sessions {
    pub(crate) async fn of(server: &Server) -> Self {
        let tcp = server.tcp(ROLE, "127.0.0.1");
        let (client, connection) = tokio_postgres::connect(&tcp, NoTls).await.unwrap();
        tokio::spawn(connection);
        Self(client)
    }

    async fn count(&self, condition: &str) -> i64 {
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity \
             WHERE application_name = 'statepact' AND {condition}"
        );
        self.0.query_one(&sql, &[]).await.unwrap().get(0)
    }

    /// R25: no connection of the handles is inside a transaction, and there
    /// are no more of them than the pools may have.
    pub(crate) async fn none_is_open(&self, most: usize, context: &str) {
        assert!(self.count("true").await > 0);
        let most = i64::try_from(most).unwrap();
        let none = until("no transaction is open", async || {
            self.count("state LIKE 'idle in transaction%'").await == 0
                && self.count("true").await <= most
        });
        let ended = tokio::time::timeout(SOON, none).await;
        assert!(ended.is_ok(), "a transaction is left open: {context}");
    }
}

/// Retryable, and by its words one that is in another's way.
fn is_in_the_way<T: std::fmt::Debug>(answer: Result<T>) {
    match answer {
        Err(error @ Error::Busy { what, .. }) => {
            assert!(error.is_retryable());
            assert!(what.contains("in the way"), "{what}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_with_a_foreign_transaction_is_retryable() {
    let server = Server::start();
    // Time enough to close the circle, and less than a lock is waited for.
    server.sql("ALTER SYSTEM SET deadlock_timeout = '3s'");
    server.sql("SELECT pg_reload_conf()");
    let tcp = server.tcp(ROLE, "127.0.0.1");
    let store = Arc::new(Postgres::open(&tcp).await.unwrap());
    let request = acquire(&[&res("a"), &res("b")], "me", true);
    for lease in store.acquire_all(&request).await.unwrap() {
        assert!(store.release(&lease).await.unwrap());
    }
    let (foreign, connection) = tokio_postgres::connect(&tcp, NoTls).await.unwrap();
    tokio::spawn(connection);
    let lock = |resource: &str| {
        format!("SELECT FROM statepact.statepact_leases WHERE resource = '{resource}' FOR UPDATE")
    };
    // The store's transaction is to find the deadlock.
    let begin = format!("BEGIN; SET LOCAL deadlock_timeout = '1h'; {}", lock("b"));
    foreign.batch_execute(&begin).await.unwrap();
    let asked = {
        let (store, request) = (store.clone(), request.clone());
        tokio::spawn(async move { store.acquire_all(&request).await })
    };
    until("the store waits for `b`", async || {
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        let row = foreign.query_one(waiting, &[]).await.unwrap();
        row.get::<_, i64>(0) > 0
    })
    .await;
    within("one of them gives way", foreign.batch_execute(&lock("a")))
        .await
        .unwrap();
    is_in_the_way(asked.await.unwrap());
    foreign.batch_execute("ROLLBACK").await.unwrap();
    // R1: it issued nothing.
    let leases = store.acquire_all(&request).await.unwrap();
    assert!(leases.iter().all(|lease| lease.token.get() == 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_the_server_cannot_serialize_is_retried() {
    let server = Server::start();
    let tcp = server.tcp(ROLE, "127.0.0.1");
    let store: Arc<dyn Backend> = Arc::new(Postgres::open(&tcp).await.unwrap());
    // The first two transactions fail at their end, where such failures come.
    server.sql(
        "CREATE SEQUENCE statepact.tries; \
         CREATE FUNCTION statepact.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ \
         BEGIN \
             IF nextval('statepact.tries') <= 2 THEN \
                 RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'could not serialize'; \
             END IF; \
             RETURN NULL; \
         END $$; \
         CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON statepact.statepact_log \
             DEFERRABLE INITIALLY DEFERRED \
             FOR EACH ROW EXECUTE FUNCTION statepact.refuse()",
    );
    let request = commit(None, vec![write(&res("a"), [("n", Some(1))])]);
    is_in_the_way(store.commit(&request).await);
    assert_eq!(store.read(&[res("a")]).await.unwrap(), [None]);
    assert_eq!(store.events(0, 10).await.unwrap().newest, 0);

    let mut attempts = 0;
    StateManager::new(store.clone())
        .session("agent")
        .resource("a")
        .transact(RetryPolicy::default(), async |session| {
            attempts += 1;
            let n: u64 = session.read("a", "n").await?.unwrap_or(0);
            session.write("a", "n", &(n + 1))?;
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(attempts, 2);
    let state = store.read(&[res("a")]).await.unwrap();
    assert_eq!(state[0].as_ref().unwrap().version, 1);
    let sessions = Sessions::of(&server).await;
    sessions.none_is_open(8, "retried").await;
}
