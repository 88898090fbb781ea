//! Generated calls, to the lock manager and to the model: the same answers, the same wakings in the
//! same order.

use kestrel_types::wire::{LOCK_END, LockKind, LockMode, LockSpan};
use proptest::prelude::*;

use super::model::{BYTES, Model};
use crate::locks::{LockLimits, LockOwner, Locks, Set, Ticket};

#[derive(Debug, Clone)]
enum Step {
    Set(LockOwner, LockSpan, bool),
    /// The n-th client with a broken connection comes back.
    Again(prop::sample::Index),
    Unlock(LockOwner, LockSpan),
    Release(LockOwner, LockSpan),
    Test(LockOwner, LockSpan),
    /// The n-th of those that wait.
    Cancel(prop::sample::Index),
    Orphan(u64),
    End(u64),
}

fn owner() -> impl Strategy<Value = LockOwner> {
    (1..4u64, 1..4u64).prop_map(|(session, id)| LockOwner { session, id })
}

fn span() -> impl Strategy<Value = (LockOwner, LockSpan)> {
    let mode = prop_oneof![Just(LockMode::Read), Just(LockMode::Write)];
    (owner(), 1..3u64, prop::bool::weighted(0.25), mode, 0..BYTES, 0..BYTES).prop_map(
        |(owner, ino, flock, mode, a, b)| {
            let (kind, start, end) = match flock {
                true => (LockKind::Flock, 0, LOCK_END),
                false => (LockKind::Posix, a.min(b), a.max(b)),
            };
            (owner, LockSpan { ino, owner: owner.id, pid: 7, kind, mode, start, end })
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => (span(), any::<bool>())
            .prop_map(|((owner, span), wait)| Step::Set(owner, span, wait)),
        6 => span().prop_map(|(owner, span)| Step::Unlock(owner, span)),
        2 => span().prop_map(|(owner, span)| Step::Release(owner, span)),
        3 => span().prop_map(|(owner, span)| Step::Test(owner, span)),
        2 => any::<prop::sample::Index>().prop_map(Step::Cancel),
        1 => (1..4u64).prop_map(Step::Orphan),
        2 => any::<prop::sample::Index>().prop_map(Step::Again),
        1 => (1..4u64).prop_map(Step::End),
    ]
}

fn set(
    locks: &mut Locks,
    model: &mut Model,
    (owner, span): (LockOwner, LockSpan),
    call: Option<u64>,
) -> Result<(), TestCaseError> {
    let (mut woken, mut expected) = (Vec::new(), Vec::new());
    let got = locks.set(owner.session, &span, call, &mut woken);
    let got = got.map(|set| set == Set::Waiting).map_err(|error| error.errno);
    prop_assert_eq!(got, model.set(owner, &span, call, &mut expected));
    prop_assert_eq!(woken, expected);
    Ok(())
}

fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let (mut locks, mut model) = (Locks::new(LockLimits::default()), Model::default());
    for (number, step) in steps.into_iter().enumerate() {
        let call = number as u64 + 1;
        let (mut woken, mut expected) = (Vec::new(), Vec::new());
        match step {
            Step::Set(owner, span, wait) => {
                set(&mut locks, &mut model, (owner, span), wait.then_some(call))?
            }
            Step::Again(which) => {
                let orphans = model.orphans();
                if !orphans.is_empty() {
                    set(&mut locks, &mut model, *which.get(&orphans), Some(call))?;
                }
            }
            Step::Unlock(owner, span) => {
                let range = (span.start, span.end);
                prop_assert_eq!(
                    locks.unlock(owner, span.ino, span.kind, range, &mut woken),
                    Ok(())
                );
                model.unlock(owner, &span, &mut expected);
            }
            Step::Release(owner, span) => {
                locks.release_owner(owner, span.ino, span.kind, &mut woken);
                model.unlock(owner, &LockSpan { start: 0, end: BYTES - 1, ..span }, &mut expected);
            }
            Step::Test(owner, span) => {
                let held = locks.test(owner.session, &span);
                let wanted = model.test(owner, &span);
                prop_assert_eq!(
                    held.map(|held| (held.owner, held.mode, held.start, held.end)),
                    wanted.map(|(owner, mode, start, end)| (owner.id, mode, start, end))
                );
                let pid =
                    wanted.map(|(holder, ..)| if holder.session == owner.session { 7 } else { 0 });
                prop_assert_eq!(held.map(|held| held.pid), pid);
            }
            Step::Cancel(which) => {
                let calls = model.calls();
                let unknown = Ticket { session: 1, call: u64::MAX };
                let Ticket { session, call } =
                    if calls.is_empty() { unknown } else { *which.get(&calls) };
                prop_assert_eq!(
                    locks.cancel(session, call),
                    model.cancel(Ticket { session, call })
                );
            }
            Step::Orphan(session) => {
                locks.orphan_waits(session);
                model.orphan(session);
            }
            Step::End(session) => {
                locks.end_session(session, &mut woken);
                model.end(session, &mut expected);
                // Files are looked at one after the other here, all together there.
                woken.sort_unstable();
                expected.sort_unstable();
            }
        }
        prop_assert_eq!(woken, expected);
        let counts = locks.counts();
        prop_assert_eq!((counts.ranges, counts.waits), (model.ranges(), model.waits()));
    }
    for session in 1..4 {
        locks.end_session(session, &mut Vec::new());
    }
    prop_assert!(locks.files.is_empty() && locks.sessions.is_empty() && locks.waiting.is_empty());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn answers_and_wakings_are_those_of_the_model(steps in prop::collection::vec(step(), 1..80)) {
        run(steps)?;
    }
}
