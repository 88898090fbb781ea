//! Counting by answers, and what overtaking messages must not break.

use std::collections::VecDeque;

use kestrel_types::error::FsError;
use kestrel_types::ids::ROOT;
use kestrel_types::inode::{Data, Inode, InodeFlags};
use kestrel_types::policy::Policy;
use proptest::prelude::*;

use super::*;

fn opened(ino: InodeId) -> Reply {
    let inode = Inode {
        ino,
        kind: Kind::File,
        mode: 0o600,
        uid: 0,
        gid: 0,
        nlink: 1,
        rdev: 0,
        size: 0,
        atime: 0,
        mtime: 0,
        ctime: 0,
        btime: 0,
        change: 1,
        data_change: 1,
        xattrs: false,
        flags: InodeFlags::default(),
        acls: None,
        data: Data::None,
        effective: Policy::default(),
    };
    Ok(Answer::Opened { inode: Box::new(inode), created: false, parent: None })
}

const READ: OpenEffect = OpenEffect::Opens { write: false, linkable: false };
const WRITE: OpenEffect = OpenEffect::Opens { write: true, linkable: false };

/// Begins to give an open back.
fn leave(opens: &Opens, ino: InodeId) -> OpenRow {
    match opens.leave(ino) {
        ReleasedOpen::Back(given) => given,
        other => panic!("{other:?}"),
    }
}

fn held_at(opens: &Opens, ino: InodeId) -> Option<NodeId> {
    let row = opens.begin_use(ino, &[])?;
    opens.end_use(&row);
    Some(row.node)
}

fn left(opens: &Opens, ino: InodeId) -> NodeId {
    leave(opens, ino).node
}

fn released(opens: &Opens, given: OpenRow) {
    opens.answered(given.node, OpenEffect::Releases(given), &Ok(Answer::Done));
}

#[test]
fn opens_are_counted_by_answers() {
    let opens = Opens::default();
    let failed = |errno| Err(FsError::new(errno, "test").into());
    let temporary = OpenEffect::of(&Op::TmpFile { dir: ROOT, mode: 0, exclusive: false });
    opens.answered(0, READ, &opened(20));
    opens.answered(0, READ, &opened(20));
    opens.answered(0, temporary, &opened(21));
    opens.answered(0, READ, &failed(libc::EACCES));
    opens.answered(0, OpenEffect::None, &opened(22));
    let mut all = opens.all_at(0);
    all.sort_by_key(|(ino, _)| *ino);
    let (twice, once) = (
        Open { count: 2, ..Open::default() },
        Open { count: 1, write: true, linkable: true, number: 1, ..Open::default() },
    );
    assert_eq!(all, [(20, twice), (21, once)]);
    released(&opens, leave(&opens, 20));
    opens.answered(0, OpenEffect::Releases(leave(&opens, 20)), &failed(libc::EIO));
    assert_eq!(opens.len(), 2, "a release that failed has released nothing");
    opens.answered(0, OpenEffect::Releases(leave(&opens, 20)), &failed(libc::EBADF));
    let given = leave(&opens, 21);
    opens.lost(0, 21);
    opens.answered(0, OpenEffect::Releases(given), &failed(libc::EBADF));
    assert_eq!((opens.len(), opens.leave(21)), (0, ReleasedOpen::Unknown));
}

/// An open that a node has lost is closed without asking that node, and no other open is closed
/// with it.
#[test]
fn close_of_opens_lost_by_a_node() {
    let opens = Opens::default();
    for node in [1, 1, 1, 2] {
        opens.answered(node, WRITE, &opened(20));
    }
    let under_way = leave(&opens, 20);
    assert_eq!(under_way.node, 1);
    opens.lost(1, 20);
    assert_eq!((held_at(&opens, 20), opens.len()), (Some(2), 1));
    // It is opened again there; what was under way does not concern that.
    opens.answered(1, READ, &opened(20));
    released(&opens, under_way);
    assert_eq!(opens.all_at(1)[0].1.count, 1);
    assert_eq!((opens.leave(20), opens.leave(20)), (ReleasedOpen::Lost, ReleasedOpen::Lost));
    assert_eq!((left(&opens, 20), left(&opens, 20)), (1, 2));
    assert_eq!(opens.leave(20), ReleasedOpen::Unknown);
}

#[test]
fn each_node_counts_its_own_and_loses_its_own() {
    let opens = Opens::default();
    opens.answered(1, READ, &opened(20));
    opens.answered(2, READ, &opened(20));
    opens.answered(2, READ, &opened(20));
    opens.answered(2, READ, &opened(21));
    assert_eq!((opens.all_at(1).len(), opens.all_at(2).len(), opens.all_at(3).len()), (1, 2, 0));
    opens.lost(2, 20);
    assert_eq!((held_at(&opens, 20), opens.len()), (Some(1), 2));
    assert_eq!((opens.leave(20), opens.leave(20)), (ReleasedOpen::Lost, ReleasedOpen::Lost));
    let given = leave(&opens, 20);
    assert_eq!(
        (given.node, opens.leave(20), held_at(&opens, 20)),
        (1, ReleasedOpen::Unknown, None)
    );
    assert_eq!(
        opens.all_at(1)[0].1.count,
        1,
        "it is claimed again as long as its release has no answer"
    );
    released(&opens, given);
    assert_eq!(opens.len(), 1);
}

#[test]
fn what_was_opened_for_writing_is_given_back_last() {
    let opens = Opens::default();
    for (node, how) in [(1, READ), (2, WRITE), (2, READ), (3, READ)] {
        opens.answered(node, how, &opened(20));
    }
    assert_eq!(held_at(&opens, 20), Some(2));
    let mut given: Vec<_> = (0..2).map(|_| leave(&opens, 20)).collect();
    given.sort_unstable_by_key(|given| given.node);
    assert_eq!([given[0].node, given[1].node], [1, 3]);
    given.push(leave(&opens, 20));
    assert_eq!((given[2].node, held_at(&opens, 20)), (2, Some(2)), "a writable one is left");
    given.push(leave(&opens, 20));
    assert_eq!(
        (given[3].node, held_at(&opens, 20), opens.leave(20)),
        (2, None, ReleasedOpen::Unknown)
    );
    given.into_iter().for_each(|given| released(&opens, given));
    assert_eq!(opens.len(), 0);
}

/// A node where all opens were released does not count as open for writing because it was so
/// before.
#[test]
fn no_stale_write_access_at_a_node() {
    let opens = Opens::default();
    opens.answered(2, READ, &opened(20));
    opens.answered(1, WRITE, &opened(20));
    let given = [leave(&opens, 20), leave(&opens, 20)];
    assert_eq!(given.map(|given| given.node), [2, 1]);
    // An open for reading was on its way to each; the nodes had no more opens when it came there.
    opens.answered(1, READ, &opened(20));
    opens.answered(2, WRITE, &opened(20));
    given.into_iter().for_each(|given| released(&opens, given));
    assert_eq!(held_at(&opens, 20), Some(2));
    assert_eq!((left(&opens, 20), held_at(&opens, 20)), (1, Some(2)));
}

/// What is on its way to a node, or its answer on the way back.
#[derive(Debug, Clone, Copy)]
enum Message {
    Open { write: bool },
    Release(OpenRow),
    Write,
}

/// A node, with what it counts of one file, and what is on the way, in both directions in order.
#[derive(Debug, Default)]
struct Server {
    count: u32,
    write: bool,
    coming: VecDeque<Message>,
    going: VecDeque<Message>,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Open { node: usize, write: bool },
    Close { handle: usize },
    Write,
    Arrive { node: usize },
    Answer { node: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0..3_usize;
    prop_oneof![
        2 => (node.clone(), any::<bool>()).prop_map(|(node, write)| Step::Open { node, write }),
        2 => (0..8_usize).prop_map(|handle| Step::Close { handle }),
        2 => Just(Step::Write),
        4 => node.clone().prop_map(|node| Step::Arrive { node }),
        4 => node.prop_map(|node| Step::Answer { node }),
    ]
}

proptest! {
    /// However messages to several nodes overtake each other: no node is asked to release what it
    /// does not count, and what is written comes to a node that has the file open for writing.
    #[test]
    fn nodes_have_open_what_they_are_asked_about(steps in prop::collection::vec(step(), 0..200)) {
        let (opens, mut handles) = (Opens::default(), Vec::new());
        let mut servers: [Server; 3] = Default::default();
        // In the end everything is answered, closed, and answered again.
        let nodes = || (0..3_usize).cycle().take(3 * 400);
        let rest = || nodes().map(|node| Step::Arrive { node }).chain(nodes().map(|node| Step::Answer { node }));
        let closes = (0..200).map(|_| Step::Close { handle: 0 });
        for step in steps.into_iter().chain(rest()).chain(closes).chain(rest()) {
            match step {
                Step::Open { node, write } => servers[node].coming.push_back(Message::Open { write }),
                Step::Close { handle } if handle < handles.len() => {
                    handles.swap_remove(handle);
                    let given = leave(&opens, 20);
                    servers[given.node as usize].coming.push_back(Message::Release(given));
                }
                Step::Write if handles.contains(&true) => {
                    let node = held_at(&opens, 20).expect("it is open");
                    servers[node as usize].coming.push_back(Message::Write);
                }
                Step::Close { .. } | Step::Write => {}
                Step::Arrive { node } => {
                    let server = &mut servers[node];
                    let Some(message) = server.coming.pop_front() else { continue };
                    match message {
                        Message::Open { write } => {
                            server.count += 1;
                            server.write |= write;
                        }
                        Message::Release(_) => {
                            prop_assert!(server.count > 0);
                            server.count -= 1;
                            server.write &= server.count > 0;
                        }
                        Message::Write => prop_assert!(server.write),
                    }
                    server.going.push_back(message);
                }
                Step::Answer { node } => match servers[node].going.pop_front() {
                    Some(Message::Open { write }) => {
                        let effect = OpenEffect::Opens { write, linkable: false };
                        opens.answered(node as NodeId, effect, &opened(20));
                        handles.push(write);
                    }
                    Some(Message::Release(given)) => released(&opens, given),
                    Some(Message::Write) | None => {}
                },
            }
        }
        prop_assert_eq!((opens.len(), servers.map(|server| server.count)), (0, [0; 3]));
    }
}

/// What is open at node 1 is opened at node 2 as well.
fn move_all(opens: &Opens, ino: InodeId) {
    let rows = opens.to_move(1, 10);
    assert!(rows.iter().all(|(row, _)| row.ino == ino && row.node == 1));
    for (row, open) in rows {
        opens.answered(2, if open.write { WRITE } else { READ }, &opened(ino));
        opens.moved(&row, true);
    }
}

/// An open at a node that leaves is made at another node before it is released at the first one.
#[test]
fn opens_moved_from_a_leaving_node() {
    let opens = Opens::default();
    opens.answered(1, WRITE, &opened(20));
    opens.answered(1, READ, &opened(20));
    let used = opens.begin_use(20, &[1]).unwrap();
    assert_eq!(used.node, 1);
    move_all(&opens, 20);
    assert_eq!(
        held_at(&opens, 20),
        Some(2),
        "both nodes let it be written, and one of them leaves"
    );
    assert!(opens.spare(&[1]).is_empty(), "somebody relies on it");
    move_all(&opens, 20);
    assert!(opens.to_move(1, 10).is_empty());
    opens.end_use(&used);
    let rows = opens.spare(&[1]);
    assert_eq!(rows.iter().map(|row| row.node).collect::<Vec<_>>(), [1, 1]);
    rows.into_iter().for_each(|row| released(&opens, row));
    assert!(opens.all_at(1).is_empty() && opens.spare(&[1]).is_empty());
    assert_eq!(
        (left(&opens, 20), left(&opens, 20), opens.leave(20)),
        (2, 2, ReleasedOpen::Unknown)
    );
}

/// A handle that is closed while its open moves leaves one open too many, which is released.
#[test]
fn close_during_a_move_of_opens() {
    for closed_first in [false, true] {
        let opens = Opens::default();
        opens.answered(1, WRITE, &opened(20));
        let (row, _) = opens.to_move(1, 10)[0];
        let close = || released(&opens, leave(&opens, 20));
        if closed_first {
            close();
            opens.answered(2, WRITE, &opened(20));
            opens.moved(&row, true);
        } else {
            opens.answered(2, WRITE, &opened(20));
            opens.moved(&row, true);
            close();
        }
        let rows = opens.spare(&[1]);
        assert_eq!(rows.len(), 1);
        rows.into_iter().for_each(|row| released(&opens, row));
        assert_eq!((opens.len(), opens.leave(20)), (0, ReleasedOpen::Unknown));
    }
}

/// Opens that were made at another node already are not lost when the first node loses them.
#[test]
fn loss_of_opens_that_have_moved() {
    let opens = Opens::default();
    opens.answered(1, WRITE, &opened(20));
    opens.answered(1, WRITE, &opened(20));
    let (row, _) = opens.to_move(1, 10)[0];
    move_all(&opens, 20);
    opens.lost(1, 20);
    opens.answered(2, WRITE, &opened(20));
    opens.moved(&row, true);
    assert!(opens.spare(&[1]).is_empty());
    assert_eq!(
        (left(&opens, 20), left(&opens, 20), opens.leave(20)),
        (2, 2, ReleasedOpen::Unknown)
    );
}

proptest! {
    /// Opens, closes, moves in any order: a client that has the file open for writing always finds
    /// a node that lets it be written, no node is asked to release what it does not count or what
    /// is in use there, and in the end the node that leaves counts nothing.
    #[test]
    fn handles_survive_a_move(steps in prop::collection::vec((0u8..9, any::<u8>()), 1..80)) {
        let opens = Opens::default();
        let (mut handles, mut under_way, mut used): (Vec<bool>, Vec<OpenRow>, Vec<OpenRow>) = Default::default();
        let mut counted = [0u32; 4];
        let step = |kind: u8, arg: u8, handles: &mut Vec<bool>, under_way: &mut Vec<OpenRow>, used: &mut Vec<OpenRow>, counted: &mut [u32; 4]| {
            match kind {
                // Node 1 leaves: some were opened there before.
                0 | 1 => {
                    let (node, write) = (1 + u32::from(arg % 3), arg & 4 != 0);
                    opens.answered(node, if write { WRITE } else { READ }, &opened(20));
                    counted[node as usize] += 1;
                    handles.push(write);
                }
                2 | 3 if !handles.is_empty() => {
                    handles.swap_remove(usize::from(arg) % handles.len());
                    let ReleasedOpen::Back(row) = opens.leave(20) else { panic!("it is open") };
                    counted[row.node as usize] -= 1;
                    released(&opens, row);
                }
                4 => under_way.extend(opens.to_move(1, 10).into_iter().map(|(row, _)| row)),
                5 if !under_way.is_empty() => {
                    let row = under_way.swap_remove(usize::from(arg) % under_way.len());
                    let done = arg & 8 != 0;
                    if done {
                        // As the row says by now.
                        opens.answered(2, WRITE, &opened(20));
                        counted[2] += 1;
                    }
                    opens.moved(&row, done);
                }
                6 => for row in opens.spare(&[1]) {
                    prop_assert!(row.node != 1 || used.iter().all(|used| used.counted_as != row.counted_as));
                    counted[row.node as usize] -= 1;
                    released(&opens, row);
                },
                7 if !handles.is_empty() => used.extend(opens.begin_use(20, &[1])),
                8 if !used.is_empty() => {
                    let row = used.swap_remove(usize::from(arg) % used.len());
                    opens.end_use(&row);
                }
                _ => {}
            }
            for node in 1..=3 {
                let there = opens.all_at(node).first().map_or(0, |(_, open)| open.count);
                prop_assert_eq!(there, counted[node as usize]);
            }
            if let Some(row) = opens.begin_use(20, &[1]).inspect(|row| opens.end_use(row)) {
                let at = opens.all_at(row.node)[0].1;
                prop_assert!(at.write || !handles.iter().any(|write| *write));
            } else {
                prop_assert!(handles.is_empty());
            }
            Ok(())
        };
        for (kind, arg) in steps {
            step(kind, arg, &mut handles, &mut under_way, &mut used, &mut counted)?;
        }
        while !used.is_empty() {
            step(8, 0, &mut handles, &mut under_way, &mut used, &mut counted)?;
        }
        for _ in 0..200 {
            for (kind, arg) in [(4, 0), (5, 8), (6, 0)] {
                step(kind, arg, &mut handles, &mut under_way, &mut used, &mut counted)?;
            }
        }
        prop_assert_eq!(counted[1], 0);
        prop_assert_eq!(counted.iter().sum::<u32>() as usize, handles.len());
    }
}
