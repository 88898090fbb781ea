//! Runs steps on the reference alone, one by one, while they are generated. The actors are threads
//! with a root directory, working directory, umask and credentials of their own (the kernel keeps
//! these for each thread), which spares sending steps to other processes. Locks are per process and
//! so mean nothing here; nobody looks at them.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::compare::actor::{ACTORS, Actor};
use crate::compare::exec::World;
use crate::compare::op::{Op, Step};
use crate::sys;

/// To an actor's thread, and back.
type Line = (Sender<Step>, Receiver<Result<i64, String>>);

/// Calls `body` with a function that runs a step in `tree` and returns its result.
pub fn with_rehearsal<T>(
    tree: &Path,
    body: impl FnOnce(&mut dyn FnMut(&Step) -> i64) -> T,
) -> Result<T, String> {
    std::thread::scope(|scope| {
        let mut lines: Vec<Line> = Vec::new();
        for actor in ACTORS {
            let ((send, asked), (answer, answered)) = (channel(), channel());
            scope.spawn(move || match become_actor(tree, actor) {
                Ok(mut world) => {
                    let _ = answer.send(Ok(0));
                    while let Ok(step) = asked.recv() {
                        let _ = answer.send(Ok(play(&mut world, &step)));
                    }
                    world.close_all();
                }
                Err(what) => {
                    let _ = answer.send(Err(format!("rehearsal as {}: {what}", actor.name)));
                }
            });
            answered.recv().map_err(|e| e.to_string())??;
            lines.push((send, answered));
        }
        let mut rehearse = |step: &Step| {
            let (send, answered) = &lines[step.actor as usize];
            match send.send(step.clone()) {
                Ok(()) => {
                    answered.recv().ok().and_then(Result::ok).unwrap_or(-i64::from(libc::EIO))
                }
                Err(_) => -i64::from(libc::EIO),
            }
        };
        Ok(body(&mut rehearse))
    })
}

fn play(world: &mut World, step: &Step) -> i64 {
    match step.op {
        // A wait for a lock would hold up the rehearsal, and the alarm would hit any thread.
        Op::LockWait { .. } => 0,
        _ => world.run(&Step { probe: false, ..step.clone() }).ret,
    }
}

fn become_actor(tree: &Path, actor: &Actor) -> Result<World, String> {
    let name = |e: i32| crate::errno::name(e);
    sys::own_fs_context().map_err(name)?;
    crate::compare::actor::enter(tree)?;
    let world = World::new(sys::wall_clock().0).map_err(name)?;
    sys::thread_credentials(actor.uid, actor.gid, actor.groups).map_err(name)?;
    Ok(world)
}
