//! The link against a model of a node, with connections that break at any point, restarts, expiries
//! and deadlines.
//!
//! | file | |
//! | --- | --- |
//! | `world` | a link and the model of a node, joined by a scripted connection |
//! | `model` | a model of a node, as far as a session can tell |

pub(crate) mod model;
mod world;

use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::request::{Answer, Creds, Op, OpenFlags, Request};
use kestrel_types::security::Security;
use kestrel_types::wire::{
    Answered, Body, ClientId, LockAnswer, LockKind, LockMode, LockRequest, LockSpan, Refused,
    SessionState, ToClient, ToServer, VERSION, Welcome,
};
use proptest::prelude::*;

use super::*;
use world::{Submitted, World};

const DEADLINE: Nanos = 10 * SECOND;

fn config() -> LinkConfig {
    LinkConfig {
        volume: "v".into(),
        client: ClientId([7; 16]),
        who: "test".into(),
        server: "node:1".into(),
        token: None,
    }
}

fn op(op: Op) -> Body {
    Body::Op(Request { creds: Creds::root(), op })
}

fn named(number: u64) -> PathRef {
    PathRef::new(100 + number % 3, Name::new(format!("d{number}").as_bytes()).unwrap())
}

fn make(number: u64) -> Body {
    op(Op::MkDir(named(number), 0o755))
}

fn lock(wait: bool) -> Body {
    let lock = LockSpan {
        ino: 5,
        owner: 1,
        pid: 1,
        kind: LockKind::Posix,
        mode: LockMode::Write,
        start: 0,
        end: 9,
    };
    Body::Lock(LockRequest::Set { lock, wait })
}

#[derive(Debug, Clone)]
enum Step {
    Make,
    Create,
    Open(u64),
    Release(u64),
    Read,
    Lock,
    Admin,
    Cancel(usize),
    Up(usize),
    Down(usize),
    Grant,
    Connect,
    Cut,
    Lose(SessionState),
    Pass(Nanos),
}

fn step() -> impl Strategy<Value = Step> {
    let lost = prop_oneof![
        Just(SessionState::Restarted),
        Just(SessionState::Expired),
        Just(SessionState::New)
    ];
    prop_oneof![
        4 => Just(Step::Make),
        2 => Just(Step::Create),
        4 => (1u64..4).prop_map(Step::Open),
        3 => (1u64..4).prop_map(Step::Release),
        2 => Just(Step::Read),
        1 => Just(Step::Lock),
        1 => Just(Step::Admin),
        1 => any::<usize>().prop_map(Step::Cancel),
        8 => (1usize..6).prop_map(Step::Up),
        8 => (1usize..6).prop_map(Step::Down),
        1 => Just(Step::Grant),
        4 => Just(Step::Connect),
        3 => Just(Step::Cut),
        1 => lost.prop_map(Step::Lose),
        3 => (1..4 * SECOND).prop_map(Step::Pass),
    ]
}

fn run(steps: Vec<Step>) {
    let mut world = World::new();
    for (number, step) in steps.into_iter().enumerate() {
        let number = number as u64;
        let until = CallDeadline::Until(world.now + DEADLINE);
        match step {
            Step::Make => world.submit(make(number), Submitted::Make(number), until),
            Step::Create => {
                let (place, flags) = (named(number), OpenFlags::default());
                let create = Op::Create { place, mode: 0o644, flags, exclusive: false };
                world.submit(op(create), Submitted::Create(number), until);
            }
            Step::Open(ino) => {
                let flags = OpenFlags::default();
                let open = match number % 2 {
                    0 => Op::Open(InodeRef::by_id(ino), flags),
                    _ => Op::OpenAt(PathRef { base: ino, ..named(number) }, flags),
                };
                world.submit(op(open), Submitted::Open(ino), until);
            }
            Step::Release(ino) => {
                // A client closes only what it has opened, and once.
                let releasing = world.submitted.iter().enumerate().filter(|(index, (asked, _))| {
                    *asked == Submitted::Release(ino) && !world.outcomes.contains_key(index)
                });
                if world.held.get(&ino).copied().unwrap_or(0) > releasing.count() as i64 {
                    world.submit(
                        op(Op::Release(ino)),
                        Submitted::Release(ino),
                        CallDeadline::Always,
                    );
                }
            }
            Step::Read => {
                world.submit(op(Op::GetAttr(InodeRef::by_id(3))), Submitted::Other, until)
            }
            Step::Lock => {
                world.submit(lock(true), Submitted::Other, CallDeadline::Outage(DEADLINE))
            }
            Step::Admin => {
                let question = Body::Admin(b"{}".to_vec().into());
                world.submit(
                    question,
                    Submitted::Other,
                    CallDeadline::Connection(world.now + DEADLINE),
                );
            }
            Step::Cancel(which) if !world.ids.is_empty() => {
                world.link.cancel(world.ids[which % world.ids.len()]);
                world.collect();
            }
            Step::Cancel(_) => {}
            Step::Up(most) => world.deliver_up(most),
            Step::Down(most) => world.deliver_down(most),
            Step::Grant => world.node.grant(&mut world.down),
            Step::Connect => world.connect(),
            Step::Cut => world.cut(),
            Step::Lose(how) => {
                world.cut();
                world.node.lose(how);
            }
            Step::Pass(time) => {
                world.now += time;
                world.tick();
            }
        }
    }
    world.run_to_end();
    world.check();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Whatever happens to connections and nodes: every call ends, in time; nothing is carried out
    /// twice; what succeeded was carried out, what "nothing was done" about was not; the node
    /// counts the opens that the client has.
    #[test]
    fn calls_are_carried_out_once_and_end(steps in prop::collection::vec(step(), 1..160)) {
        run(steps);
    }
}

fn up() -> World {
    let mut world = World::new();
    world.run_to_end();
    assert!(world.link.is_up());
    world
}

#[test]
fn a_lost_answer_is_given_again() {
    let mut world = up();
    world.submit(make(1), Submitted::Make(1), CallDeadline::Until(DEADLINE));
    world.deliver_up(usize::MAX);
    assert_eq!(world.down.len(), 1);
    world.cut();
    world.run_to_end();
    world.check();
    assert_eq!((world.link.stats().sent, world.link.stats().retries), (1, 1));
}

#[test]
fn the_window_holds_back_what_does_not_fit() {
    let mut world = up();
    for number in 0..WINDOW + 10 {
        world.submit(make(number), Submitted::Make(number), CallDeadline::Until(DEADLINE));
    }
    assert_eq!(world.up.len() as u64, WINDOW);
    // All but the oldest are answered: nothing moves on.
    let oldest = world.up.pop_front().unwrap();
    world.deliver_up(usize::MAX);
    world.deliver_down(usize::MAX);
    assert!(world.up.is_empty());
    world.up.push_back(oldest);
    world.deliver_up(1);
    world.deliver_down(1);
    assert_eq!(world.up.len(), 10);
    world.run_to_end();
    world.check();
}

#[test]
fn too_many_calls_are_refused_and_none_is_lost() {
    let mut world = World::new();
    for _ in 0..CALLS_MAX + 5 {
        world.submit(op(Op::GetAttr(InodeRef::by_id(3))), Submitted::Other, CallDeadline::Always);
    }
    let refused = world
        .outcomes
        .values()
        .filter(|outcome| outcome.as_ref().is_err_and(|e| e.errno == libc::EAGAIN));
    assert_eq!(refused.count(), 6);
    world.run_to_end();
    world.check();
}

/// Another process goes on with a session: nothing is reclaimed, numbers go on, and the node knows
/// what is open.
#[test]
fn session_of_another_process() {
    let mut world = up();
    let open = op(Op::Open(InodeRef::by_id(3), OpenFlags::default()));
    world.submit(open, Submitted::Open(3), CallDeadline::Until(DEADLINE));
    world.submit(make(1), Submitted::Make(1), CallDeadline::Until(DEADLINE));
    world.run_to_end();
    let session = world.link.session();
    assert_eq!((session.client, session.calls, session.incarnation), (config().client, 2, 1));
    world.link.leave();
    world.cut();
    world.link = Link::new(config(), world.now);
    world.link.resume(&session);
    world.submit(make(2), Submitted::Make(2), CallDeadline::Until(DEADLINE));
    world.run_to_end();
    world.check();
    assert_eq!(world.reclaimed, []);
    let later = world.link.session();
    assert_eq!((later.calls, later.incarnation), (3, 2));
}

/// An open that the caller gave up is released when it succeeds after all.
#[test]
fn late_success_of_an_abandoned_open() {
    let mut world = up();
    world.submit(
        op(Op::Open(InodeRef::by_id(2), OpenFlags::default())),
        Submitted::Open(2),
        CallDeadline::Until(DEADLINE),
    );
    world.deliver_up(usize::MAX);
    world.now = DEADLINE;
    world.receive_pong();
    world.tick();
    assert_eq!(world.outcomes[&0].as_ref().unwrap_err().errno, libc::EIO);
    world.run_to_end();
    world.check();
    assert!(world.node.opens.values().all(|count| *count == 0));
}

#[test]
fn a_silent_node_is_given_up_and_pinged_before() {
    let mut world = up();
    let mut pings = 0;
    loop {
        let next = world.link.next_tick();
        assert!(next > world.now && next <= world.now + SECOND, "a third of the lease of 3 s");
        world.now = next;
        world.tick();
        pings +=
            world.up.drain(..).filter(|message| matches!(message, ToServer::Ping { .. })).count();
        if !world.connected {
            break;
        }
    }
    assert_eq!((world.now, pings), (2 * SECOND, 1));
}

/// A node is overdue one lease after the message was sent that it answered last.
#[test]
fn overdue_node() {
    let mut world = up();
    world.now = SECOND;
    world.tick();
    // It hears the Ping, and its answer takes its time.
    world.deliver_up(usize::MAX);
    world.now = 2 * SECOND - 1;
    world.deliver_down(usize::MAX);
    world.cut();
    assert!(world.link.next_tick() <= 4 * SECOND, "a lease of 3 s");
    assert!(!world.link.is_overdue(4 * SECOND - 1) && world.link.is_overdue(4 * SECOND));
    world.now = 5 * SECOND;
    world.tick();
    assert_eq!(world.link.next_tick(), Nanos::MAX);
    world.connect();
    assert!(world.link.is_overdue(world.now), "it has not answered");
    world.run_to_end();
    assert!(!world.link.is_overdue(world.now));
}

/// A call that waits can be ended, and a call that was sent cannot.
#[test]
fn ending_of_calls_not_yet_sent() {
    let mut world = up();
    world.submit(make(1), Submitted::Other, CallDeadline::Until(DEADLINE));
    world.cut();
    world.connect();
    world.run_to_end();
    world.submit(make(2), Submitted::Other, CallDeadline::Until(DEADLINE));
    world.link.fail_waiting(|_| true, "test");
    world.run_to_end();
    world.submit(make(3), Submitted::Other, CallDeadline::Until(DEADLINE));
    world.cut();
    world.submit(make(4), Submitted::Other, CallDeadline::Until(DEADLINE));
    world.link.fail_waiting(|_| true, "test");
    world.connect();
    world.run_to_end();
    let failed: Vec<_> = (0..4).map(|asked| world.outcomes[&asked].is_err()).collect();
    assert_eq!(failed, [false, false, true, true]);
}

/// A waiting lock outlives deadlines, but not an outage.
#[test]
fn waiting_lock_and_an_outage() {
    let mut world = up();
    world.submit(lock(true), Submitted::Other, CallDeadline::Outage(DEADLINE));
    world.deliver_up(usize::MAX);
    world.now = 100 * SECOND;
    world.receive_pong();
    world.tick();
    assert!(world.outcomes.is_empty());
    world.cut();
    world.now += DEADLINE - 1;
    world.tick();
    assert!(world.outcomes.is_empty());
    world.now += 1;
    world.tick();
    assert_eq!(world.outcomes[&0].as_ref().unwrap_err().errno, libc::EIO);
    // The node is told to cancel a call that no caller waits for any more.
    world.connect();
    world.deliver_up(usize::MAX);
    world.deliver_down(usize::MAX);
    assert!(
        world.up.iter().any(|message| matches!(message, ToServer::Cancel { .. })),
        "{:?}",
        world.up
    );
}

#[test]
fn a_cancelled_wait_ends_with_the_answer_of_the_node() {
    let mut world = up();
    world.submit(lock(true), Submitted::Other, CallDeadline::Outage(DEADLINE));
    world.deliver_up(usize::MAX);
    world.link.cancel(world.ids[0]);
    world.run_to_end();
    assert!(
        matches!(&world.outcomes[&0], Ok(Answered::Lock(Err(error))) if error.errno == libc::EINTR)
    );
    // One that was granted before stays granted.
    world.submit(lock(true), Submitted::Other, CallDeadline::Outage(DEADLINE));
    world.deliver_up(usize::MAX);
    world.node.grant(&mut world.down);
    world.link.cancel(world.ids[1]);
    world.run_to_end();
    assert!(matches!(world.outcomes[&1], Ok(Answered::Lock(Ok(LockAnswer::Done)))));
}

/// The session sends no calls to a node before the driver accepts that node.
#[test]
fn no_calls_before_the_node_is_accepted() {
    let mut link: Link<()> = Link::new(config(), 0);
    link.submit(make(1), CallDeadline::Always, ());
    link.connected(0, Security::Loopback);
    let (mut hello, mut more) = (Vec::new(), Vec::new());
    link.take_output(&mut hello);
    let welcome = |session| {
        let descriptor = Box::default();
        ToClient::Welcome(Welcome {
            version: VERSION,
            node: 1,
            epoch: 1,
            descriptor,
            session,
            lease_ms: 1000,
            table: 1,
            root: 1,
        })
    };
    link.received(0, &mut vec![welcome(SessionState::New)]).unwrap();
    link.take_output(&mut more);
    assert!(!hello.is_empty() && more.is_empty());
    // It was another volume's: what it answered about the session means nothing.
    link.disconnected(0);
    link.connected(0, Security::Loopback);
    link.received(0, &mut vec![welcome(SessionState::New)]).unwrap();
    link.accept();
    assert!(link.is_up());
}

#[test]
fn a_node_that_breaks_the_protocol_is_left() {
    let reply =
        |answered| ToClient::Reply(kestrel_types::wire::ReplyTo { id: 0, table: 1, answered });
    let mut world = up();
    world.submit(make(1), Submitted::Make(1), CallDeadline::Until(DEADLINE));
    let ToServer::Call(call) = world.up.pop_front().unwrap() else { panic!("a call") };
    let ToClient::Reply(mut wrong) = reply(Answered::Lock(Ok(LockAnswer::Done))) else {
        panic!("a reply")
    };
    wrong.id = call.id;
    assert!(world.link.received(0, &mut vec![ToClient::Reply(wrong)]).is_err());
    // An answer to a call that was never made, or was given up, is ignored.
    let mut world = up();
    world.link.received(0, &mut vec![reply(Answered::Op(Ok(Answer::Done)))]).unwrap();
    // Before the Welcome nothing else makes sense.
    let mut link: Link<()> = Link::new(config(), 0);
    link.connected(0, Security::Loopback);
    assert!(link.received(0, &mut vec![ToClient::Pong { table: 0 }]).is_err());
    let refused = Refused { errno: libc::ENOENT, reason: "no such volume".into() };
    assert!(link.received(0, &mut vec![ToClient::Refused(refused)]).is_err());
    assert!(matches!(link.next_event(), Some(LinkEvent::Refused(_))));
}

#[test]
fn a_closed_session_fails_what_is_left() {
    let mut world = up();
    world.submit(make(1), Submitted::Make(1), CallDeadline::Always);
    world.link.bye();
    world.collect();
    world.submit(make(2), Submitted::Make(2), CallDeadline::Always);
    assert!(
        world
            .outcomes
            .values()
            .all(|outcome| outcome.as_ref().is_err_and(|e| e.errno == libc::ESHUTDOWN))
    );
    assert_eq!(world.outcomes.len(), 2);
    assert!(matches!(world.up.back(), Some(ToServer::Bye)));
}

#[test]
fn an_unlock_is_pursued_beyond_its_deadline() {
    let mut world = up();
    let unlock = LockRequest::Unlock { ino: 5, owner: 1, kind: LockKind::Posix, start: 0, end: 9 };
    world.submit(Body::Lock(unlock), Submitted::Other, CallDeadline::Until(DEADLINE));
    world.cut();
    world.now = DEADLINE;
    world.tick();
    assert_eq!(world.outcomes[&0].as_ref().unwrap_err().errno, libc::EIO);
    world.connect();
    world.deliver_up(usize::MAX);
    world.deliver_down(usize::MAX);
    let again = world.up.iter().any(|message| {
        matches!(message, ToServer::Call(call) if call.retry
            && call.body == Body::Lock(unlock))
    });
    assert!(again, "{:?}", world.up);
}

/// A reclaim without an answer is repeated, and the worst state of the session is kept.
#[test]
fn repeated_reclaim() {
    let mut world = up();
    for how in [SessionState::Expired, SessionState::Restarted] {
        world.cut();
        world.node.lose(how);
        world.connect();
        world.deliver_up(usize::MAX);
        world.deliver_down(usize::MAX);
        // The node has it all, but its answer is lost.
        assert_eq!(world.up.len(), 1, "the reclaim: {:?}", world.up);
        world.deliver_up(usize::MAX);
        assert!(world.reclaimed.is_empty());
    }
    world.cut();
    world.run_to_end();
    assert_eq!(world.reclaimed, [SessionState::Expired]);
    assert!(world.link.is_up());
}

/// A message that a confused or hostile node could send; `id` is mostly one of an open call.
fn nonsense() -> impl Strategy<Value = (u8, usize, SessionState)> {
    let session = prop_oneof![
        Just(SessionState::New),
        Just(SessionState::Known),
        Just(SessionState::Restarted),
        Just(SessionState::Expired)
    ];
    (0u8..9, 0usize..12, session)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Whatever a node sends, the link does not panic, and calls end at their deadline.
    #[test]
    fn a_node_may_say_anything(said in prop::collection::vec(nonsense(), 1..60)) {
        let mut link: Link<usize> = Link::new(config(), 0);
        let (mut ids, mut ended, mut output) = (Vec::new(), Vec::new(), Vec::new());
        let bodies =
            [make(1), lock(true), lock(false), op(Op::Release(3)), Body::Admin(Box::default())];
        link.connected(0, Security::Loopback);
        for (number, (kind, which, session)) in said.into_iter().enumerate() {
            let now = number as Nanos * SECOND / 100;
            ids.push(link.submit(bodies[which % bodies.len()].clone(),
                CallDeadline::Until(DEADLINE), number).0);
            let id = ids.get(which).copied().unwrap_or(which as u64);
            let done = FsError::new(libc::EIO, "so there");
            let answered =
                |answered| ToClient::Reply(kestrel_types::wire::ReplyTo { id, table: 1, answered });
            let message = match kind {
                0 | 1 => {
                    let descriptor = Box::default();
                    ToClient::Welcome(Welcome { version: VERSION, node: 1, epoch: 1, descriptor,
                        session, lease_ms: 0, table: 9, root: 1 })
                }
                2 => ToClient::Pong { table: 0 },
                3 => ToClient::Event { id, json: Box::default() },
                4 => answered(Answered::Op(Ok(Answer::Done))),
                5 => answered(Answered::Lock(Ok(LockAnswer::Done))),
                6 => answered(Answered::Reclaim(Err(done))),
                7 => answered(Answered::Admin(Err(done))),
                _ => ToClient::Refused(Refused { errno: libc::EIO, reason: "no".into() }),
            };
            let received = link.received(now, &mut vec![message]);
            while let Some(event) = link.next_event() {
                match event {
                    LinkEvent::Welcomed(_) => link.accept(),
                    LinkEvent::ReclaimWanted { .. } => link.reclaim(Vec::new()),
                    _ => {}
                }
            }
            if received.is_err() || link.tick(now, 0) == ConnectionHealth::Lost {
                link.disconnected(now);
                link.connected(now, Security::Loopback);
            }
            output.clear();
            link.take_output(&mut output);
        }
        link.tick(DEADLINE, 0);
        link.take_completions(&mut ended);
        let mut numbers: Vec<_> = ended.iter().map(|completion| completion.done).collect();
        numbers.sort_unstable();
        prop_assert_eq!(numbers, (0..ids.len()).collect::<Vec<_>>(), "every call ends once");
    }
}
