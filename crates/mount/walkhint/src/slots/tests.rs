use std::sync::atomic::AtomicBool;

use super::*;
use kestrel_testkit::stop::StopOnDrop;

/// Slots in ordinary memory, written as the program writes them.
struct Memory {
    words: Box<[AtomicU64]>,
    slots: Slots,
}

impl Memory {
    fn new() -> Memory {
        let words: Box<[AtomicU64]> =
            (0..SLOTS as usize * RECORD_BYTES / 8).map(|_| AtomicU64::new(0)).collect();
        // SAFETY: aligned and as large as needed, and moving the box does not move the words.
        let slots = unsafe { Slots::new(words.as_ptr().cast()) };
        Memory { words, slots }
    }

    fn word(&self, index: usize, offset: usize) -> &AtomicU64 {
        &self.words[(index * RECORD_BYTES + offset) / 8]
    }

    /// What is half a word is written together with the other half.
    fn pair(&self, index: usize, offset: usize, low: u32, high: u32) {
        self.word(index, offset).store(u64::from(low) | u64::from(high) << 32, Ordering::Relaxed);
    }

    fn begin(&self, index: usize) -> u64 {
        let sequence = self.word(index, 0);
        let before = sequence.load(Ordering::Relaxed);
        sequence.swap(before + 1, Ordering::SeqCst);
        before
    }

    fn fill(&self, index: usize, lookup: &Lookup, text: &[u8]) {
        self.word(index, std::mem::offset_of!(Record, unique))
            .store(lookup.unique, Ordering::Relaxed);
        self.word(index, std::mem::offset_of!(Record, nodeid))
            .store(lookup.nodeid, Ordering::Relaxed);
        self.pair(index, std::mem::offset_of!(Record, tid), lookup.tid, OPCODE_LOOKUP);
        self.pair(index, std::mem::offset_of!(Record, state), STATE_WALK, 0x400);
        self.pair(index, std::mem::offset_of!(Record, depth), 0, 1);
        self.pair(index, std::mem::offset_of!(Record, text_bytes), text.len() as u32 + 1, 7);
        for (number, chunk) in
            text.chunks(8).chain(text.len().is_multiple_of(8).then_some(&b""[..])).enumerate()
        {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(index, HEAD_BYTES + number * 8)
                .store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }

    fn end(&self, index: usize, before: u64) {
        self.word(index, 0).swap(before + 2, Ordering::SeqCst);
    }

    fn write(&self, index: usize, lookup: &Lookup, text: &[u8]) {
        let before = self.begin(index);
        self.fill(index, lookup, text);
        self.end(index, before);
    }

    fn text(&self, lookup: &Lookup) -> Option<Vec<u8>> {
        self.slots.read(lookup, |record| Some(record.walk()?.text.to_vec()))
    }
}

const LOOKUP: Lookup = Lookup { unique: 42, tid: 5, nodeid: 9 };

#[test]
fn the_layout_has_no_holes() {
    // The program and `fill` above write what `copy_head` reads.
    assert_eq!(HEAD_BYTES, 88);
    assert_eq!(RECORD_BYTES, HEAD_BYTES + TEXT_BYTES);
}

#[test]
fn a_record_is_read_back() {
    let memory = Memory::new();
    assert_eq!(memory.text(&LOOKUP), None, "nothing there yet");
    for text in [&b""[..], b"a", b"1234567", b"12345678", b"a/b/c"] {
        memory.write(index(42, true), &LOOKUP, text);
        assert_eq!(memory.text(&LOOKUP).unwrap(), text);
    }
    let longest = vec![b'x'; 4095];
    memory.write(index(42, true), &LOOKUP, &longest);
    assert_eq!(memory.text(&LOOKUP).unwrap(), longest);
}

#[test]
fn others_get_nothing() {
    let memory = Memory::new();
    memory.write(index(42, true), &LOOKUP, b"a/b");
    for other in [
        Lookup { nodeid: 8, ..LOOKUP },
        Lookup { unique: 44, ..LOOKUP },
        Lookup { unique: 43, ..LOOKUP },
        // In the same slot.
        Lookup { unique: 42 + 2 * u64::from(SLOTS), ..LOOKUP },
    ] {
        assert_eq!(memory.text(&other), None, "{other:?}");
    }
    // Another request that is not a LOOKUP.
    memory.pair(index(42, true), std::mem::offset_of!(Record, tid), 5, 3);
    assert_eq!(memory.text(&LOOKUP), None);
}

#[test]
fn what_is_cut_off_or_failed_is_nothing() {
    let memory = Memory::new();
    let at = index(42, true);
    memory.write(at, &LOOKUP, b"a/b");
    for bytes in [0, -14i32 as u32, TEXT_BYTES as u32, u32::MAX, i32::MAX as u32, 3] {
        memory.pair(at, std::mem::offset_of!(Record, text_bytes), bytes, 7);
        assert_eq!(memory.text(&LOOKUP), None, "{bytes}");
    }
    memory.write(at, &LOOKUP, b"a/b");
    memory.pair(at, std::mem::offset_of!(Record, state), STATE_OTHER, 0x400);
    assert_eq!(memory.text(&LOOKUP), None);
}

#[test]
fn a_slot_being_written_is_nothing() {
    let memory = Memory::new();
    let at = index(42, true);
    memory.write(at, &LOOKUP, b"a/b");
    let before = memory.begin(at);
    assert_eq!(memory.text(&LOOKUP), None);
    memory.end(at, before);
    assert_eq!(memory.text(&LOOKUP).unwrap(), b"a/b");
}

#[test]
fn records_by_thread_are_good_once() {
    let memory = Memory::new();
    let unnumbered = Lookup { unique: 0, ..LOOKUP };
    let at = index(5, false);
    memory.write(at, &unnumbered, b"a/b");
    assert_eq!(memory.text(&Lookup { tid: 6, ..LOOKUP }), None);
    assert_eq!(memory.text(&Lookup { tid: 0, ..LOOKUP }), None);
    // The server's side has a number; the record has none.
    assert_eq!(memory.text(&LOOKUP).unwrap(), b"a/b");
    assert_eq!(memory.text(&LOOKUP), None, "used up");
    memory.write(at, &unnumbered, b"a/c");
    assert_eq!(memory.text(&LOOKUP).unwrap(), b"a/c");
    // A thread that is not visible has no number.
    memory.write(0, &Lookup { unique: 0, tid: 0, nodeid: 9 }, b"a/b");
    assert_eq!(memory.text(&Lookup { unique: 2048, tid: 0, nodeid: 9 }), None);
}

/// Two requests that share a slot, written all the time, while a reader reads one of them: it gets
/// the whole text of that one or nothing.
#[test]
fn torn_reads_are_noticed() {
    const READS: usize = 20_000;
    let memory = Memory::new();
    let other = Lookup { unique: 42 + 2 * u64::from(SLOTS), ..LOOKUP };
    let texts = [vec![b'a'; 900], vec![b'b'; 1100]];
    let stop = AtomicBool::new(false);
    let at = index(42, true);
    let mut seen = 0;
    std::thread::scope(|scope| {
        let _stopper = StopOnDrop::new(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                memory.write(at, &LOOKUP, &texts[0]);
                memory.write(at, &other, &texts[1]);
                // Half of the time the slot is at rest.
                std::thread::yield_now();
            }
        });
        for _ in 0..READS {
            for (lookup, text) in [&LOOKUP, &other].into_iter().zip(&texts) {
                if let Some(read) = memory.text(lookup) {
                    assert_eq!(&read, text);
                    seen += 1;
                }
            }
        }
    });
    println!("{seen} of {} reads found something", 2 * READS);
}
