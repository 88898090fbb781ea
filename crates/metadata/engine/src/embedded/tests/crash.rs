//! Crash images: what a power loss may leave of unsynced writes, and what a killed process leaves.
//!
//! The bug each would catch: a record that survives behind one that does not; a torn record taken
//! for whole; a recycled segment's old records read again; a checkpoint ahead of the log; an older
//! recovery's cut-off records coming back.

use super::super::super::disk::sim::Fate;
use super::*;

/// Small deterministic random numbers (xorshift64*).
pub(super) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Sectors survive with a chance that differs from image to image.
struct Chance<'a> {
    random: &'a mut Random,
    percent: u64,
}

impl Fate for Chance<'_> {
    fn names(&mut self, changes: usize) -> usize {
        self.random.below(changes as u64 + 1) as usize
    }

    fn sector(&mut self) -> bool {
        self.random.below(100) < self.percent
    }
}

/// Exactly the sectors with a set bit survive; all names do.
struct Mask(u64);

impl Fate for Mask {
    fn names(&mut self, changes: usize) -> usize {
        changes
    }

    fn sector(&mut self) -> bool {
        let survives = self.0 & 1 == 1;
        self.0 >>= 1;
        survives
    }
}

/// The states after each commit, by position.
struct History(Vec<ExpectedRows>);

impl History {
    fn commit(&mut self, engine: &EmbeddedEngine, mutations: Vec<Mutation>) {
        let mut next = self.0.last().cloned().unwrap_or_default();
        apply(&mut next, &mutations);
        assert_eq!(commit(engine, mutations), self.0.len() as u64);
        self.0.push(next);
    }

    /// Which prefix of the history `found` is; at least `durable`.
    fn check(&self, found: &ExpectedRows, durable: u64, seed: &str) -> usize {
        let matching = self.0.iter().rposition(|state| state == found);
        let matching =
            matching.unwrap_or_else(|| panic!("{seed}: recovered a state that never was"));
        assert!(matching as u64 >= durable, "{seed}: {matching} recovered, {durable} was durable");
        matching
    }
}

/// With each combination of surviving sectors, recovery yields a prefix of the log.
#[test]
fn crash_with_each_set_of_surviving_sectors() {
    let (disk, runs) = (SimDisk::new(None), ModelRuns::default());
    let engine = open_sim(&disk, &runs, small_options()).unwrap();
    let mut history = History(vec![ExpectedRows::new()]);
    wait_for_segment(&engine);
    history.commit(&engine, vec![put(1, b"a", &[1; 700])]);
    engine.sync().unwrap();
    // Six or seven unsynced sectors, records across their borders.
    for round in 0..5u8 {
        history.commit(&engine, vec![put(1, b"a", &[round; 300]), put(2, &[round], &[round; 200])]);
    }
    let (sectors, names) = disk.unsynced();
    assert!((6..16).contains(&sectors), "{sectors}");
    assert_eq!(names, 0);
    let mut recovered = std::collections::BTreeSet::new();
    for mask in 0..1u64 << sectors {
        let image = disk.after_power_loss(&mut Mask(mask));
        let again = open_sim(&image, &runs.snapshot(), small_options()).unwrap();
        recovered.insert(history.check(&content(&again), 1, &format!("mask {mask:b}")));
    }
    assert_eq!(recovered.into_iter().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
}

/// Commits, syncs and flushes at random; takes an image at every step; images are crashed again
/// while they are worked on.
fn storm(seed: u64) {
    let name = format!("seed {seed}");
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut disk, mut runs) = (SimDisk::new(None), ModelRuns::default());
    let mut history = History(vec![ExpectedRows::new()]);
    for _ in 0..6 {
        let engine = open_sim(&disk, &runs, small_options()).unwrap();
        history.check(&content(&engine), engine.durable(), &name);
        assert_eq!(engine.shared.log.appended() + 1, history.0.len() as u64, "{name}");
        for _ in 0..40 {
            let count = 1 + random.below(8);
            let batch = (0..count)
                .map(|_| {
                    let (id, name) = (random.below(3), [random.below(40) as u8]);
                    let len = random.below(600) as usize;
                    if random.below(4) == 0 {
                        remove(id, &name)
                    } else {
                        put(id, &name, &vec![len as u8; len])
                    }
                })
                .collect();
            history.commit(&engine, batch);
            match random.below(12) {
                0 => engine.sync().unwrap(),
                1 => engine.flush().unwrap(),
                2 => engine.shared.rows.evict(0, 2, &mut 0),
                _ => {}
            }
        }
        // The durable position first: the syncer and the flusher go on while the image is taken.
        let durable = engine.durable();
        let kill = random.below(3) == 0;
        // Runs first: what they have is in the log image that is taken later.
        let runs_image = runs.snapshot();
        let image = if kill {
            disk.after_kill()
        } else {
            let percent = random.below(101);
            disk.after_power_loss(&mut Chance { random: &mut random, percent })
        };
        drop(engine);
        let again = open_sim(&image, &runs_image, small_options()).unwrap();
        let durable = if kill { history.0.len() as u64 - 1 } else { durable };
        let survived = history.check(&content(&again), durable, &name);
        drop(again);
        // Equal states may repeat: the log shows which one it is.
        let position = {
            let again = open_sim(&image, &runs_image, small_options()).unwrap();
            again.shared.log.appended() as usize
        };
        assert_eq!(history.0[position], history.0[survived], "{name}");
        history.0.truncate(position + 1);
        (disk, runs) = (image, runs_image);
    }
}

/// After random power losses, recovery yields a prefix again and again.
#[test]
fn random_power_losses() {
    for seed in 1..=60 {
        storm(seed);
    }
}

/// The power goes off at every single operation on the disk, opening and recovering included.
#[test]
fn power_loss_at_every_operation_recovers_a_prefix() {
    for count in 0.. {
        let name = format!("operation {count}");
        let mut random = Random(count * 2 + 1);
        let (disk, runs) = (SimDisk::new(None), ModelRuns::default());
        let mut history = History(vec![ExpectedRows::new()]);
        let mut durable = 0;
        disk.power_off_after(count);
        // Two lives, so that recovery is interrupted too.
        for life in 0..2u8 {
            let Ok(engine) = open_sim(&disk, &runs, small_options()) else { break };
            for step in 0..12u8 {
                let batch = vec![put(1, &[step], &[life; 900]), put(2, &[step % 3], &[step; 300])];
                let mut next = history.0.last().cloned().unwrap_or_default();
                apply(&mut next, &batch);
                if engine.commit(BatchKind::Growing, batch).is_err() {
                    break;
                }
                history.0.push(next);
                if step % 5 == 4 {
                    let _ = engine.sync();
                }
                if step == 7 {
                    let _ = engine.flush();
                }
                durable = durable.max(engine.durable());
            }
            drop(engine);
        }
        let done = !disk.is_off();
        for percent in [0, 30, 70, 100] {
            let image = disk.after_power_loss(&mut Chance { random: &mut random, percent });
            let again = open_sim(&image, &runs.snapshot(), small_options())
                .unwrap_or_else(|why| panic!("{name}, {percent} %: {why}"));
            history.check(&content(&again), durable, &name);
        }
        if done {
            assert!(count > 50, "{count}");
            return;
        }
    }
}

#[test]
fn a_rejected_batch_ends_the_log_for_good() {
    let (disk, runs) = (SimDisk::new(None), ModelRuns::default());
    let engine = open_sim(&disk, &runs, small_options()).unwrap();
    let mut history = History(vec![ExpectedRows::new()]);
    for round in 0..10u8 {
        history.commit(&engine, vec![put(1, &[round], b"value")]);
        if round == 4 {
            engine.sync().unwrap();
        }
    }
    let image = disk.after_kill();
    drop(engine);
    let mut verified = Vec::new();
    let open = |image: &SimDisk, verify: &mut dyn FnMut(&[Mutation]) -> bool| {
        open::assemble(
            Arc::new(image.clone()),
            Box::new(runs.clone()),
            UUID,
            small_options(),
            no_hook(),
            verify,
            None,
        )
        .unwrap()
    };
    let engine = open(&image, &mut |batch: &[Mutation]| {
        verified.push(batch[0].key.suffix[0]);
        batch[0].key.suffix[0] < 7
    });
    assert_eq!(verified, [5, 6, 7]);
    assert_eq!(content(&engine), history.0[7]);
    history.0.truncate(8);
    // Shorter than what was there, so that the old records behind it are still whole.
    history.commit(&engine, vec![put(1, b"x", b"")]);
    engine.sync().unwrap();
    let image = image.after_kill();
    drop(engine);
    let engine = open(&image, &mut |_| true);
    assert_eq!(content(&engine), history.0[8]);
}
