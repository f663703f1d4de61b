//! Each isolation anomaly, forced by the order of the steps, in each mode:
//! that it is prevented where the mode says so, and admitted where it does
//! not. R21, R22.

use super::check::{Verdict, expect_conflict, expect_eq};
use super::context::{Commit, Context};
use crate::backend::CommitReceipt;
use crate::error::Result;
use crate::manager::StateManager;
use crate::session::Isolation::{self, ReadCommitted, Serializable, Snapshot};
use crate::session::Session;

super::case_list! { "isolation":
    [21] dirty_write_is_prevented_in_every_mode,
        "two sessions that write the same two fields never end half and half";
    [21, 25] dirty_read_is_prevented_in_every_mode,
        "what a session has written is seen by nobody before it commits, or ever if it is dropped";
    [21] intermediate_read_is_prevented_in_every_mode,
        "of several writes to a field in one session only the last is seen";
    [21, 22] lost_update_is_admitted_by_read_committed_alone,
        "of two sessions that read and write one field the second conflicts, or overwrites";
    [21] fuzzy_read_is_admitted_by_read_committed_alone,
        "reading a field twice gives one answer, but where each read sees the newest";
    [21] read_skew_is_admitted_by_read_committed_alone,
        "two fields are read as of one moment, but where each read sees the newest";
    [21] read_skew_over_resources_is_admitted_by_read_committed_alone,
        "the snapshot is one over all declared resources";
    [21, 22] write_skew_is_prevented_by_serializable_alone,
        "two sessions read two fields and write one each: snapshots admit both";
    [21, 22] write_skew_over_resources_is_prevented_by_serializable_alone,
        "the same with two resources";
    [21, 22] a_phantom_field_is_seen_by_read_committed_alone,
        "a field read as absent stays so, and serializable sessions conflict when it has come";
    [21, 22] a_phantom_resource_is_seen_by_read_committed_alone,
        "the same for a resource that did not exist";
    [21, 22] a_whole_read_depends_on_every_field,
        "a field that came after a whole state was read conflicts with a serializable session";
    [21, 22] a_stale_read_alone_conflicts_in_serializable_sessions,
        "a session that only read is told as well";
    [21] the_snapshot_is_taken_when_the_session_begins,
        "and not when it first reads";
    [21, 22] a_whole_write_depends_on_the_whole_resource,
        "replacing or deleting a state conflicts with any change since the snapshot";
    [21] a_session_sees_its_own_writes,
        "in every mode, and over what is stored";
    [21, 22] different_fields_conflict_in_no_mode,
        "sessions that touch different fields of one resource both commit";
}

pub(super) const MODES: [Isolation; 3] = [ReadCommitted, Snapshot, Serializable];

/// Two resources of a mode's own, in a store, with `x` and `y` in each at 0.
pub(super) struct Scene<'a> {
    c: &'a Context,
    mode: Isolation,
    pub(super) a: String,
    b: String,
}

impl<'a> Scene<'a> {
    pub(super) async fn set(c: &'a Context, mode: Isolation) -> Verdict<Self> {
        let scene = Self {
            c,
            mode,
            a: format!("{mode:?}/a"),
            b: format!("{mode:?}/b"),
        };
        let zero = [("x", "0"), ("y", "0")];
        let commit = Commit::new()
            .replace(&scene.a, &zero)
            .replace(&scene.b, &zero);
        c.commit(commit).await?;
        Ok(scene)
    }

    pub(super) async fn begin(&self) -> Result<Session> {
        StateManager::new(self.c.shared())
            .session("conformance")
            .resources([self.a.as_str(), self.b.as_str()])
            .isolation(self.mode)
            .begin()
            .await
    }

    /// What somebody else commits in between.
    pub(super) async fn write(&self, of: &str, field: &str, value: i64) -> Verdict {
        self.c
            .commit(Commit::new().set(of, field, &value.to_string()))
            .await?;
        Ok(())
    }

    pub(super) async fn stored(&self, of: &str, field: &str) -> Verdict<i64> {
        let text = self.c.value(of, field).await?;
        Ok(text.and_then(|text| text.parse().ok()).unwrap_or(i64::MIN))
    }

    /// That a commit is accepted in the modes named, and is a conflict on the
    /// field in the others.
    #[track_caller]
    fn admitted_in(
        &self,
        modes: &[Isolation],
        answer: Result<CommitReceipt>,
        of: &str,
        field: Option<&str>,
    ) -> Verdict {
        let what = format!("the commit in {:?}", self.mode);
        if modes.contains(&self.mode) {
            answer?;
            Ok(())
        } else {
            expect_conflict(&what, answer, of, field)
        }
    }

    #[track_caller]
    fn reads(&self, what: &str, found: Option<i64>, expected: [Option<i64>; 3]) -> Verdict {
        let [read_committed, snapshot, serializable] = expected;
        let expected = match self.mode {
            ReadCommitted => read_committed,
            Snapshot => snapshot,
            Serializable => serializable,
        };
        expect_eq(&format!("{what} in {:?}", self.mode), found, expected)
    }
}

async fn dirty_write_is_prevented_in_every_mode(c: Context) -> Verdict {
    for mode in MODES {
        let s = Scene::set(&c, mode).await?;
        let (mut first, mut second) = (s.begin().await?, s.begin().await?);
        first.write(&*s.a, "x", &1)?;
        second.write(&*s.a, "x", &2)?;
        second.write(&*s.b, "y", &2)?;
        first.write(&*s.b, "y", &1)?;
        first.commit().await?;
        s.admitted_in(&[ReadCommitted], second.commit().await, &s.a, Some("x"))?;
        let both = (s.stored(&s.a, "x").await?, s.stored(&s.b, "y").await?);
        let expected = if mode == ReadCommitted {
            (2, 2)
        } else {
            (1, 1)
        };
        expect_eq(&format!("both fields after {mode:?}"), both, expected)?;
    }
    Ok(())
}

async fn dirty_read_is_prevented_in_every_mode(c: Context) -> Verdict {
    for mode in MODES {
        let s = Scene::set(&c, mode).await?;
        let mut writer = s.begin().await?;
        writer.write(&*s.a, "x", &1)?;
        writer.delete(&*s.a, "y")?;
        let mut reader = s.begin().await?;
        s.reads("x before", reader.read(&*s.a, "x").await?, [Some(0); 3])?;
        s.reads("y before", reader.read(&*s.a, "y").await?, [Some(0); 3])?;
        drop(writer);
        s.reads(
            "x after the drop",
            reader.read(&*s.a, "x").await?,
            [Some(0); 3],
        )?;
        reader.write(&*s.a, "x", &5)?;
        reader.commit().await?;
        expect_eq("x in the end", s.stored(&s.a, "x").await?, 5)?;
    }
    Ok(())
}

async fn intermediate_read_is_prevented_in_every_mode(c: Context) -> Verdict {
    for mode in MODES {
        let s = Scene::set(&c, mode).await?;
        let mut writer = s.begin().await?;
        let mut reader = s.begin().await?;
        writer.write(&*s.a, "x", &1)?;
        s.reads("x before", reader.read(&*s.a, "x").await?, [Some(0); 3])?;
        writer.write(&*s.a, "x", &2)?;
        writer.commit().await?;
        let x = reader.read(&*s.a, "x").await?;
        s.reads("x after", x, [Some(2), Some(0), Some(0)])?;
        let state = c.existing(&s.a).await?;
        expect_eq("one commit is one version", state.version, 2)?;
    }
    Ok(())
}

async fn lost_update_is_admitted_by_read_committed_alone(c: Context) -> Verdict {
    for mode in MODES {
        let s = Scene::set(&c, mode).await?;
        let (mut first, mut second) = (s.begin().await?, s.begin().await?);
        for (session, more) in [(&mut first, 10), (&mut second, 1)] {
            let x: i64 = session.read(&*s.a, "x").await?.unwrap_or(i64::MIN);
            session.write(&*s.a, "x", &(x + more))?;
        }
        first.commit().await?;
        s.admitted_in(&[ReadCommitted], second.commit().await, &s.a, Some("x"))?;
        let lost = if mode == ReadCommitted { 1 } else { 10 };
        expect_eq(
            &format!("x after {mode:?}"),
            s.stored(&s.a, "x").await?,
            lost,
        )?;
    }
    Ok(())
}

async fn fuzzy_read_is_admitted_by_read_committed_alone(c: Context) -> Verdict {
    for mode in MODES {
        let s = Scene::set(&c, mode).await?;
        let mut session = s.begin().await?;
        s.reads("x", session.read(&*s.a, "x").await?, [Some(0); 3])?;
        s.write(&s.a, "x", 1).await?;
        let again = session.read(&*s.a, "x").await?;
        s.reads("x again", again, [Some(1), Some(0), Some(0)])?;
        session.write(&*s.b, "y", &1)?;
        let answer = session.commit().await;
        s.admitted_in(&[ReadCommitted, Snapshot], answer, &s.a, Some("x"))?;
    }
    Ok(())
}

/// Reads `x` of one resource and `y` of another, with both written between.
async fn read_skew(s: &Scene<'_>, of_y: &str, to_write: &str) -> Verdict {
    let mut session = s.begin().await?;
    s.reads("x", session.read(&*s.a, "x").await?, [Some(0); 3])?;
    let both = Commit::new();
    let both = if of_y == s.a {
        both.fields(of_y, &[("x", Some("1")), ("y", Some("1"))])
    } else {
        both.set(&s.a, "x", "1").set(of_y, "y", "1")
    };
    s.c.commit(both).await?;
    let y = session.read(of_y, "y").await?;
    s.reads("y", y, [Some(1), Some(0), Some(0)])?;
    session.write(to_write, "z", &1)?;
    let answer = session.commit().await;
    s.admitted_in(&[ReadCommitted, Snapshot], answer, &s.a, Some("x"))
}

async fn read_skew_is_admitted_by_read_committed_alone(c: Context) -> Verdict {
    for mode in MODES {
        let s = Scene::set(&c, mode).await?;
        read_skew(&s, &s.a, &s.a).await?;
    }
    Ok(())
}

async fn read_skew_over_resources_is_admitted_by_read_committed_alone(c: Context) -> Verdict {
    for mode in MODES {
        let s = Scene::set(&c, mode).await?;
        read_skew(&s, &s.b, &s.b).await?;
    }
    Ok(())
}

/// Two sessions that both read `x` of `a` and `y` of `of_y`; the first writes
/// `x`, the second `y`, each only if both are 0.
async fn write_skew(s: &Scene<'_>, of_y: &str) -> Verdict {
    let (mut first, mut second) = (s.begin().await?, s.begin().await?);
    for session in [&mut first, &mut second] {
        let both: (Option<i64>, Option<i64>) = (
            session.read(&*s.a, "x").await?,
            session.read(of_y, "y").await?,
        );
        expect_eq("what each reads", both, (Some(0), Some(0)))?;
    }
    first.write(&*s.a, "x", &1)?;
    second.write(of_y, "y", &1)?;
    first.commit().await?;
    let answer = second.commit().await;
    s.admitted_in(&[ReadCommitted, Snapshot], answer, &s.a, Some("x"))?;
    let y = i64::from(s.mode != Serializable);
    expect_eq("x", s.stored(&s.a, "x").await?, 1)?;
    expect_eq("y", s.stored(of_y, "y").await?, y)
}

async fn write_skew_is_prevented_by_serializable_alone(c: Context) -> Verdict {
    for mode in MODES {
        let s = Scene::set(&c, mode).await?;
        write_skew(&s, &s.a).await?;
    }
    Ok(())
}

async fn write_skew_over_resources_is_prevented_by_serializable_alone(c: Context) -> Verdict {
    for mode in MODES {
        let s = Scene::set(&c, mode).await?;
        write_skew(&s, &s.b).await?;
    }
    Ok(())
}

async fn a_phantom_field_is_seen_by_read_committed_alone(c: Context) -> Verdict {
    for mode in MODES {
        let s = Scene::set(&c, mode).await?;
        let mut session = s.begin().await?;
        s.reads(
            "the absent field",
            session.read(&*s.a, "new").await?,
            [None; 3],
        )?;
        s.write(&s.a, "new", 1).await?;
        let again = session.read(&*s.a, "new").await?;
        s.reads("the field again", again, [Some(1), None, None])?;
        session.write(&*s.b, "y", &1)?;
        let answer = session.commit().await;
        s.admitted_in(&[ReadCommitted, Snapshot], answer, &s.a, Some("new"))?;
    }
    Ok(())
}

async fn a_phantom_resource_is_seen_by_read_committed_alone(c: Context) -> Verdict {
    for mode in MODES {
        let s = Scene::set(&c, mode).await?;
        let new = format!("{mode:?}/new");
        let builder = StateManager::new(c.shared()).session("conformance");
        let builder = builder.resources([&new, &s.b]).isolation(mode);
        let mut session = builder.begin().await?;
        let before = session.read_fields(&new).await?;
        expect_eq("the absent resource", before, None)?;
        c.lease(&new, "o").await?;
        let again = session.read_fields(&new).await?.map(|_| 1);
        s.reads("the resource again", again, [Some(1), None, None])?;
        session.write(&*s.b, "y", &1)?;
        let answer = session.commit().await;
        s.admitted_in(&[ReadCommitted, Snapshot], answer, &new, None)?;
    }
    Ok(())
}

async fn a_whole_read_depends_on_every_field(c: Context) -> Verdict {
    for mode in MODES {
        let s = Scene::set(&c, mode).await?;
        let mut session = s.begin().await?;
        let count = |fields: Option<std::collections::BTreeMap<_, _>>| {
            fields.and_then(|fields| i64::try_from(fields.len()).ok())
        };
        s.reads(
            "the fields",
            count(session.read_fields(&*s.a).await?),
            [Some(2); 3],
        )?;
        s.write(&s.a, "new", 1).await?;
        let again = count(session.read_fields(&*s.a).await?);
        s.reads("the fields again", again, [Some(3), Some(2), Some(2)])?;
        session.write(&*s.b, "y", &1)?;
        let answer = session.commit().await;
        s.admitted_in(&[ReadCommitted, Snapshot], answer, &s.a, None)?;
    }
    Ok(())
}

async fn a_stale_read_alone_conflicts_in_serializable_sessions(c: Context) -> Verdict {
    for mode in MODES {
        let s = Scene::set(&c, mode).await?;
        let mut session = s.begin().await?;
        s.reads("x", session.read(&*s.a, "x").await?, [Some(0); 3])?;
        s.write(&s.a, "x", 1).await?;
        let answer = session.commit().await;
        s.admitted_in(&[ReadCommitted, Snapshot], answer, &s.a, Some("x"))?;
    }
    Ok(())
}

async fn the_snapshot_is_taken_when_the_session_begins(c: Context) -> Verdict {
    for mode in MODES {
        let s = Scene::set(&c, mode).await?;
        let mut session = s.begin().await?;
        s.write(&s.a, "x", 1).await?;
        let x = session.read(&*s.a, "x").await?;
        s.reads("the first read", x, [Some(1), Some(0), Some(0)])?;
        drop(session);
        let mut later = s.begin().await?;
        s.reads(
            "a later session",
            later.read(&*s.a, "x").await?,
            [Some(1); 3],
        )?;
    }
    Ok(())
}

async fn a_whole_write_depends_on_the_whole_resource(c: Context) -> Verdict {
    for mode in MODES {
        for delete in [false, true] {
            let s = Scene::set(&c, mode).await?;
            let mut session = s.begin().await?;
            if delete {
                session.delete_resource(&*s.a)?;
            } else {
                session.write_state(&*s.a, &std::collections::BTreeMap::from([("x", 9)]))?;
            }
            s.write(&s.a, "other", 1).await?;
            let answer = session.commit().await;
            s.admitted_in(&[ReadCommitted], answer, &s.a, None)?;
        }
    }
    Ok(())
}

async fn a_session_sees_its_own_writes(c: Context) -> Verdict {
    for mode in MODES {
        let s = Scene::set(&c, mode).await?;
        let mut session = s.begin().await?;
        session.write(&*s.a, "x", &7)?;
        session.write(&*s.a, "new", &8)?;
        session.delete(&*s.a, "y")?;
        s.write(&s.a, "x", 1).await?;
        s.reads(
            "a field written",
            session.read(&*s.a, "x").await?,
            [Some(7); 3],
        )?;
        s.reads(
            "a field added",
            session.read(&*s.a, "new").await?,
            [Some(8); 3],
        )?;
        s.reads(
            "a field deleted",
            session.read(&*s.a, "y").await?,
            [None; 3],
        )?;
        session.delete_resource(&*s.a)?;
        expect_eq(
            "a resource deleted",
            session.read_fields(&*s.a).await?,
            None,
        )?;
    }
    Ok(())
}

async fn different_fields_conflict_in_no_mode(c: Context) -> Verdict {
    for mode in MODES {
        let s = Scene::set(&c, mode).await?;
        let (mut first, mut second) = (s.begin().await?, s.begin().await?);
        for (session, field) in [(&mut first, "x"), (&mut second, "y")] {
            let value: i64 = session.read(&*s.a, field).await?.unwrap_or(i64::MIN);
            session.write(&*s.a, field, &(value + 1))?;
        }
        second.commit().await?;
        first.commit().await?;
        let both = (s.stored(&s.a, "x").await?, s.stored(&s.a, "y").await?);
        expect_eq(&format!("both fields in {mode:?}"), both, (1, 1))?;
    }
    Ok(())
}
