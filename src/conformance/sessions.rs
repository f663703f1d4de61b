//! Fences and ids through sessions, in each isolation mode: R13, R16 to R18,
//! R26.

use super::check::{Verdict, expect_eq, expect_lost};
use super::context::{Context, LONG};
use super::isolation::{MODES, Scene};
use crate::error::LossReason;
use crate::manager::StateManager;

super::case_list! { "sessions":
    [13, 21] the_fence_is_checked_in_every_mode,
        "nothing is validated in read-committed sessions but the fence";
    [17, 21] a_fence_can_be_demanded_and_given_through_sessions,
        "require_fence, then writes with and without one";
    [16, 18, 21] a_live_fence_works_through_sessions,
        "fence_live is refused when the lease has expired, before any conflict";
    [26] a_session_with_an_id_can_be_sent_again,
        "the request that it stands for, kept, answers the same";
}

async fn the_fence_is_checked_in_every_mode(c: Context) -> Verdict {
    let old = c.expired("job", "a").await?;
    let new = c.lease("job", "b").await?;
    let manager = StateManager::new(c.shared());
    for mode in MODES {
        let s = Scene::set(&c, mode).await?;
        let session = || {
            manager
                .session("conformance")
                .resource(&*s.a)
                .isolation(mode)
        };
        let mut stale = session().fence(&old).begin().await?;
        stale.write(&*s.a, "x", &1)?;
        // A conflict too, of which the stale owner does not hear.
        s.write(&s.a, "x", 2).await?;
        let why = LossReason::Superseded { by: new.token };
        let answer = stale.commit().await;
        expect_lost(&format!("{mode:?}"), answer, "job", old.token, why)?;
        let mut stale = session().fence_token("job", old.token).begin().await?;
        stale.write(&*s.a, "x", &1)?;
        expect_lost(
            &format!("{mode:?}"),
            stale.commit().await,
            "job",
            old.token,
            why,
        )?;
        let mut good = session().fence(&new).begin().await?;
        good.write(&*s.a, "x", &3)?;
        good.commit().await?;
        expect_eq("x", s.stored(&s.a, "x").await?, 3)?;
    }
    Ok(())
}

async fn a_fence_can_be_demanded_and_given_through_sessions(c: Context) -> Verdict {
    let manager = StateManager::new(c.shared());
    let lease = manager.lease("job", "a", LONG).await?;
    for mode in MODES {
        let s = Scene::set(&c, mode).await?;
        let mut session = s.begin().await?;
        session.require_fence(&*s.a, true)?;
        session.commit().await?;
        let mut without = s.begin().await?;
        without.write(&*s.a, "x", &1)?;
        super::check::expect_fence_required("without", without.commit().await, &s.a)?;
        let with = manager
            .session("conformance")
            .resource(&*s.a)
            .isolation(mode);
        let mut with = with.fence(&lease).begin().await?;
        with.write(&*s.a, "x", &2)?;
        with.commit().await?;
        expect_eq("x", s.stored(&s.a, "x").await?, 2)?;
    }
    Ok(())
}

async fn a_live_fence_works_through_sessions(c: Context) -> Verdict {
    let manager = StateManager::new(c.shared());
    for mode in MODES {
        let s = Scene::set(&c, mode).await?;
        let job = format!("{mode:?}/job");
        let lease = c.lease_for(&job, "a", super::context::SHORT).await?;
        let session = manager
            .session("conformance")
            .resource(&*s.a)
            .isolation(mode);
        let mut session = session.fence_live(&lease).begin().await?;
        session.write(&*s.a, "x", &1)?;
        c.expire(&lease).await?;
        s.write(&s.a, "x", 2).await?;
        let answer = session.commit().await;
        expect_lost(
            &format!("{mode:?}"),
            answer,
            &job,
            lease.token,
            LossReason::Expired,
        )?;
        let lease = c.lease(&job, "a").await?;
        let session = manager
            .session("conformance")
            .resource(&*s.a)
            .isolation(mode);
        let mut session = session.fence_live(&lease).begin().await?;
        session.write(&*s.a, "x", &3)?;
        session.commit().await?;
        expect_eq("x", s.stored(&s.a, "x").await?, 3)?;
    }
    Ok(())
}

async fn a_session_with_an_id_can_be_sent_again(c: Context) -> Verdict {
    for (bits, mode) in (40..).zip(MODES) {
        let s = Scene::set(&c, mode).await?;
        let session = StateManager::new(c.shared()).session("conformance");
        let session = session.resource(&*s.a).isolation(mode);
        let id = crate::resource::CommitId::from_bits(bits);
        let mut session = session.commit_id(id).begin().await?;
        let x: i64 = session.read(&*s.a, "x").await?.unwrap_or(i64::MIN);
        session.write(&*s.a, "x", &(x + 1))?;
        let request = session.into_request();
        let first = c.backend().commit(&request).await?;
        expect_eq("sent again", c.backend().commit(&request).await?, first)?;
        expect_eq(&format!("x in {mode:?}"), s.stored(&s.a, "x").await?, 1)?;
    }
    Ok(())
}
