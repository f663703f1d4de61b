//! Opening a store: making its tables, and the servers that refuse.

use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use statepact::backend::Backend;
use statepact::backend::postgres::{Postgres, PostgresOptions};
use statepact::clock::{Clock, SystemClock};
use statepact::{Error, ErrorKind, ResourceName};
use tokio::runtime::Runtime;

use crate::server::{GUARDED_ROLE, PASSWORD, ROLE, free_port, new_schema};
use crate::{lease, server, trial};

pub(crate) fn add(trials: &mut Vec<Trial>, runtime: &Arc<Runtime>) {
    trials.extend([
        trial(
            runtime,
            "opening::many_make_the_tables_at_once",
            many_at_once,
        ),
        trial(runtime, "opening::a_newer_schema_is_refused", newer_schema),
        trial(
            runtime,
            "opening::without_migration_nothing_is_made",
            no_migration,
        ),
        trial(
            runtime,
            "opening::a_role_needs_no_right_to_create",
            few_rights,
        ),
        trial(runtime, "opening::schemas_share_nothing", two_schemas),
        trial(runtime, "opening::the_url_opens_it", by_url),
        trial(
            runtime,
            "opening::a_wrong_password_says_what_to_do",
            wrong_password,
        ),
        trial(
            runtime,
            "opening::a_missing_database_says_what_to_do",
            no_database,
        ),
        trial(
            runtime,
            "opening::a_server_out_of_reach_is_retryable",
            out_of_reach,
        ),
        trial(
            runtime,
            "opening::a_silent_server_is_given_up",
            silent_server,
        ),
        trial(
            runtime,
            "opening::an_encoding_without_all_names_is_refused",
            latin1,
        ),
        trial(runtime, "tls::what_each_mode_encrypts", tls_modes),
        trial(runtime, "tls::what_each_mode_verifies", tls_trust),
        trial(
            runtime,
            "opening::r20_what_a_session_is_set_to_does_not_matter",
            odd_settings,
        ),
    ]);
}

async fn many_at_once() -> Result<(), Failed> {
    let schema = new_schema();
    let url = server().url(&schema);
    let mut opening = tokio::task::JoinSet::new();
    for owner in 0..12 {
        let url = url.clone();
        opening.spawn(async move {
            // A pool of its own, as another process has.
            let store = Postgres::open(&url).await?;
            lease(&store, &format!("job-{owner}"), "owner").await
        });
    }
    while let Some(opened) = opening.join_next().await {
        opened??;
    }
    let versions = server().sql(&format!("SELECT version FROM {schema}.statepact_meta"));
    assert_eq!(versions, "1");
    let store = Postgres::open(&url).await?;
    let page = store.events(0, 100).await?;
    assert_eq!(page.events.len(), 12, "one log for all");
    Ok(())
}

async fn newer_schema() -> Result<(), Failed> {
    let schema = new_schema();
    let url = server().url(&schema);
    Postgres::open(&url).await?;
    server().sql(&format!("UPDATE {schema}.statepact_meta SET version = 99"));
    let refused = Postgres::open(&url).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Storage);
    assert!(refused.to_string().contains("newer version"), "{refused}");
    server().sql(&format!("DELETE FROM {schema}.statepact_meta"));
    let damaged = Postgres::open(&url).await.unwrap_err();
    assert_eq!(damaged.kind(), ErrorKind::Corrupt);
    Ok(())
}

async fn no_migration() -> Result<(), Failed> {
    let schema = new_schema();
    let url = server().url(&schema);
    let refused = PostgresOptions::new()
        .migrate(false)
        .open(&url)
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Storage);
    let schemas = format!("SELECT count(*) FROM pg_namespace WHERE nspname = '{schema}'");
    assert_eq!(server().sql(&schemas), "0");
    Postgres::open(&url).await?;
    PostgresOptions::new().migrate(false).open(&url).await?;
    Ok(())
}

async fn few_rights() -> Result<(), Failed> {
    let schema = new_schema();
    Postgres::open(&server().url(&schema)).await?;
    let url = format!(
        "{}?schema={schema}",
        server().tcp(
            &format!("{GUARDED_ROLE}:{PASSWORD}").replace(' ', "%20"),
            "127.0.0.1"
        )
    );
    let refused = Postgres::open(&url).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Storage, "{refused}");
    assert!(refused.to_string().contains("grant"), "{refused}");
    server().sql(&format!(
        "GRANT USAGE ON SCHEMA {schema} TO {GUARDED_ROLE}; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {GUARDED_ROLE}"
    ));
    let store = Postgres::open(&url).await?;
    let held = lease(&store, "job", "owner").await?;
    assert!(store.release(&held).await?);
    Ok(())
}

async fn two_schemas() -> Result<(), Failed> {
    // Names that need quotes, and one that another's would fold to.
    let (first, second) = (new_schema(), new_schema());
    let (first, second) = (format!("{first}-x"), format!("{second}_X"));
    let a = Postgres::open(&server().url(&first)).await?;
    let b = PostgresOptions::new()
        .schema(&second)
        .open(&server().url("").replace("?schema=", ""))
        .await?;
    let one = lease(&a, "job", "a").await?;
    let other = lease(&b, "job", "b").await?;
    assert_eq!((one.token.get(), other.token.get()), (1, 1));
    Ok(())
}

async fn by_url() -> Result<(), Failed> {
    let url = server().url(&new_schema());
    let store = statepact::backend::open(&url).await?;
    store.now().await?;
    let store = statepact::backend::open(&url.replace("postgres:", "postgresql:")).await?;
    store.now().await?;
    let refused = Postgres::open("postgres://nobody@localhost/x?schema=a%22b").await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    Ok(())
}

async fn wrong_password() -> Result<(), Failed> {
    let url = server().tcp(&format!("{GUARDED_ROLE}:hunter2"), "127.0.0.1");
    let refused = Postgres::open(&url).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Storage, "{refused}");
    assert!(!refused.is_retryable());
    let said = refused.to_string();
    assert!(said.contains("check user and password"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
    Ok(())
}

async fn no_database() -> Result<(), Failed> {
    let url = server()
        .tcp(ROLE, "127.0.0.1")
        .replace("/postgres", "/nowhere");
    let url = url.replacen("//nowhere", "//postgres", 1);
    let refused = Postgres::open(&url).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Storage, "{refused}");
    assert!(
        refused.to_string().contains("create the database"),
        "{refused}"
    );
    Ok(())
}

async fn out_of_reach() -> Result<(), Failed> {
    let port = free_port();
    for url in [
        format!("postgres://{ROLE}@127.0.0.1:{port}/postgres"),
        format!("postgres://{ROLE}@%2Fno%2Fsuch%2Ffolder/postgres"),
        format!("postgres://{ROLE}@no-such-host.invalid/postgres"),
    ] {
        let failed = Postgres::open(&url).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Unavailable, "{url}: {failed}");
        assert!(failed.is_retryable());
    }
    Ok(())
}

async fn silent_server() -> Result<(), Failed> {
    // It takes the connection and says nothing.
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let opening = PostgresOptions::new()
        .connect_timeout(Duration::from_millis(200))
        .open(&format!("postgres://{ROLE}@127.0.0.1:{port}/postgres"))
        .await;
    assert_eq!(opening.unwrap_err().kind(), ErrorKind::Unavailable);
    Ok(())
}

async fn latin1() -> Result<(), Failed> {
    let database = new_schema();
    server().sql(&format!(
        "CREATE DATABASE {database} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
    ));
    let url = server()
        .url("statepact")
        .replace("/postgres?", &format!("/{database}?"));
    let refused = Postgres::open(&url).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Storage);
    assert!(refused.to_string().contains("UTF8"), "{refused}");
    Ok(())
}

/// Settings of the server, the database or the role.
async fn odd_settings() -> Result<(), Failed> {
    let schema = new_schema();
    let settings = [
        "synchronous_commit=off",
        "default_transaction_isolation=serializable",
        "default_transaction_read_only=on",
        "search_path=nowhere",
        "timezone=Asia/Tokyo",
    ];
    let options = settings.map(|setting| format!("-c%20{}", setting.replace('=', "%3D")));
    let url = format!("{}&options={}", server().url(&schema), options.join("%20"));
    let store = Postgres::open(&url).await?;
    // The transaction that hands a token out waits until it is on disk.
    server().sql(&format!(
        "CREATE FUNCTION {schema}.check_settings() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN \
             ASSERT current_setting('synchronous_commit') = 'on', 'commits are not durable'; \
             ASSERT current_setting('transaction_isolation') = 'read committed', 'isolation'; \
             ASSERT current_setting('lock_timeout') = '5s', 'waits for ever'; \
             RETURN NEW; END$$; \
         CREATE TRIGGER checking AFTER INSERT ON {schema}.statepact_log \
         FOR EACH ROW EXECUTE FUNCTION {schema}.check_settings()"
    ));
    let held = lease(&store, "job", "a").await?;
    store.lease_status(&held.resource).await?;
    assert!(store.release(&held).await?);
    store.check(&|_| {}).await?;
    // And the machine's clock is that of the time line.
    let skew = store.now().await?.since(SystemClock.wall());
    assert!(skew < Duration::from_secs(60), "{skew:?}");
    Ok(())
}

/// Opens a store over TCP, whose connections carry a name of their own.
async fn over_tcp(host: &str, parameters: &str) -> Result<(Postgres, String), Error> {
    let name = new_schema();
    let url = format!(
        "{}?schema={name}&application_name={name}{parameters}",
        server().tcp(ROLE, host)
    );
    let store = Postgres::open(&url).await?;
    store.lease_status(&ResourceName::new("job")?).await?;
    Ok((store, name))
}

async fn tls_modes() -> Result<(), Failed> {
    for (parameters, encrypted) in [
        ("&sslmode=disable", "f"),
        ("&sslmode=prefer", "t"),
        ("", "t"),
        ("&sslmode=require", "t"),
    ] {
        let (_store, name) = over_tcp("127.0.0.1", parameters).await?;
        let ssl = server().sql(&format!(
            "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
             WHERE application_name = '{name}'"
        ));
        assert_eq!(ssl, encrypted, "{parameters}");
    }
    Ok(())
}

async fn tls_trust() -> Result<(), Failed> {
    let folder: &std::path::Path = server().folder();
    let root = |authority: &str| {
        let path = folder.join(authority).display().to_string();
        format!("&sslrootcert={}", path.replace('/', "%2F"))
    };
    let (ours, stranger) = (root("authority.crt"), root("stranger.crt"));
    // The server's own, as when it signed it itself.
    let own = root("server.crt");
    for (host, parameters) in [
        ("localhost", format!("&sslmode=verify-full{own}")),
        ("127.0.0.1", format!("&sslmode=verify-ca{own}")),
        ("localhost", format!("&sslmode=verify-full{ours}")),
        ("localhost", format!("&sslmode=verify-ca{ours}")),
        ("127.0.0.1", format!("&sslmode=verify-ca{ours}")),
        ("127.0.0.1", format!("&sslmode=require{ours}")),
    ] {
        over_tcp(host, &parameters)
            .await
            .map_err(|error| format!("{host} {parameters}: {error}"))?;
    }
    for (host, parameters) in [
        ("127.0.0.1", format!("&sslmode=verify-full{ours}")),
        ("127.0.0.1", format!("&sslmode=verify-full{own}")),
        ("localhost", format!("&sslmode=verify-full{stranger}")),
        ("127.0.0.1", format!("&sslmode=verify-ca{stranger}")),
        ("127.0.0.1", format!("&sslmode=require{stranger}")),
        ("localhost", "&sslmode=verify-full".to_owned()),
    ] {
        let refused = over_tcp(host, &parameters).await.unwrap_err();
        assert_eq!(
            refused.kind(),
            ErrorKind::Storage,
            "{host} {parameters}: {refused}"
        );
        assert!(!refused.is_retryable());
    }
    for parameters in [root("missing.crt"), root("server.key")] {
        let parameters = format!("&sslmode=verify-full{parameters}");
        let refused = over_tcp("localhost", &parameters).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    }
    Ok(())
}
