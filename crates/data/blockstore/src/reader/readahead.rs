//! When to read ahead, and how much: a state machine for each open file, without I/O.
//!
//! Up to [`ReadAheadConfig::streams`] interleaved sequential streams are followed at once. A stream
//! is sequential from its second read on. Its window then doubles, from 256 KiB to 8 MiB by
//! default: whenever the reader has consumed most of what is ahead of it, the next window is
//! requested. Bytes that were read ahead and never consumed halve the window that later streams of
//! the handle begin with, down to nothing; streams that consume theirs restore it.

/// Settings of a [`ReadAhead`].
#[derive(Debug, Clone, Copy)]
pub struct ReadAheadConfig {
    /// First window of a stream, bytes.
    pub window_min: u64,
    /// Largest window, bytes; 0 turns read-ahead off.
    pub window_max: u64,
    /// Streams followed at once.
    pub streams: usize,
    /// A read counts for a stream if it begins at most this many bytes before or behind its
    /// position, or within what was read ahead of it: the kernel sends neighbouring reads of one
    /// reader in parallel, and they arrive in any order.
    pub tolerance: u64,
    /// The next window is requested when no more than so many quarters of it are left ahead of the
    /// reader.
    pub lead_quarters: u64,
}

impl Default for ReadAheadConfig {
    fn default() -> Self {
        Self {
            window_min: 256 * 1024,
            window_max: 8 * 1024 * 1024,
            streams: 8,
            tolerance: 256 * 1024,
            lead_quarters: 1,
        }
    }
}

impl ReadAheadConfig {
    /// For a store across a network: what is under way has to cover its latency times its
    /// bandwidth, and the next window is requested early, so that there is always a good deal of
    /// it.
    pub fn remote(window_max: u64) -> Self {
        let tolerance = 1024 * 1024;
        Self { window_min: 512 * 1024, window_max, tolerance, lead_quarters: 3, ..Self::default() }
    }
}

/// Bytes to read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// First byte within the file.
    pub pos: u64,
    /// Bytes, at least 1.
    pub len: u64,
}

#[derive(Debug, Clone)]
struct Stream {
    /// End of the furthest read.
    next: u64,
    /// End of what was read ahead; at most `next` if nothing is.
    ahead: u64,
    /// Size of the next window.
    window: u64,
    /// Sequential reads in a row.
    run: u32,
    /// When it was last used, in reads of the handle.
    used: u64,
}

/// Read-ahead of one open file.
#[derive(Debug, Clone)]
pub struct ReadAhead {
    config: ReadAheadConfig,
    streams: Vec<Stream>,
    reads: u64,
    /// Window that new streams begin with: `window_min` less what was wasted.
    first_window: u64,
}

impl ReadAhead {
    /// A handle nothing was read from yet.
    pub fn new(config: ReadAheadConfig) -> Self {
        Self {
            config,
            streams: Vec::new(),
            reads: 0,
            first_window: config.window_min.min(config.window_max),
        }
    }

    /// Notes a read of `len` bytes at `pos` of a file of `file_len` bytes, and answers what to read
    /// ahead now, if anything.
    pub fn on_read(&mut self, pos: u64, len: u64, file_len: u64) -> Option<Window> {
        if self.config.window_max == 0 || len == 0 {
            return None;
        }
        self.reads += 1;
        let end = pos.saturating_add(len);
        let tolerance = self.config.tolerance;
        let found = self.streams.iter().position(|stream| {
            pos.abs_diff(stream.next) <= tolerance || (stream.next..stream.ahead).contains(&pos)
        });
        let Some(index) = found else {
            self.begin(end);
            return None;
        };
        let (reads, config) = (self.reads, self.config);
        let stream = &mut self.streams[index];
        stream.used = reads;
        stream.run += 1;
        stream.next = stream.next.max(end);
        if stream.next >= stream.ahead && stream.window > config.window_min {
            // A whole window was of use: this handle's readers do read on.
            self.first_window = config.window_min.min(config.window_max);
        }
        if stream.window == 0 {
            // Wasted too often. A long run earns the smallest window again.
            if stream.run < 32 {
                return None;
            }
            stream.window = config.window_min.min(config.window_max);
        }
        let left = stream.ahead.saturating_sub(stream.next);
        if left > stream.window / 4 * config.lead_quarters {
            return None;
        }
        let from = stream.ahead.max(stream.next);
        let until = from.saturating_add(stream.window).min(file_len);
        stream.window = (stream.window * 2).min(config.window_max);
        if until <= from {
            return None;
        }
        stream.ahead = until;
        Some(Window { pos: from, len: until - from })
    }

    /// Starts to follow a stream, in place of the one unused for longest if there are too many.
    fn begin(&mut self, next: u64) {
        if self.streams.len() >= self.config.streams.max(1) {
            let oldest = self.streams.iter().enumerate().min_by_key(|(_, stream)| stream.used);
            if let Some((index, _)) = oldest {
                let gone = self.streams.swap_remove(index);
                if gone.ahead > gone.next {
                    self.wasted();
                }
            }
        }
        let window = self.first_window;
        self.streams.push(Stream { next, ahead: 0, window, run: 1, used: self.reads });
    }

    /// Read-ahead bytes were not consumed: streams give up, or the cache dropped them before they
    /// were read.
    pub fn wasted(&mut self) {
        self.first_window /= 2;
        if self.first_window < 64 * 1024 {
            self.first_window = 0;
        }
        for stream in &mut self.streams {
            stream.window = (stream.window / 2).max(self.first_window);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;
    const FILE: u64 = 1024 * MIB;

    fn handle() -> ReadAhead {
        ReadAhead::new(ReadAheadConfig::default())
    }

    /// Sequential reading makes the window grow, and read-ahead stays ahead of the reader.
    #[test]
    fn read_ahead_window_growth() {
        let mut state = handle();
        let (mut ahead, mut largest, mut windows) = (0, 0, Vec::new());
        for pos in (0..64 * MIB).step_by(128 * KIB as usize) {
            if let Some(window) = state.on_read(pos, 128 * KIB, FILE) {
                assert!(window.pos >= pos + 128 * KIB && window.pos >= ahead);
                assert!(ahead == 0 || window.pos == ahead, "no gap");
                ahead = window.pos + window.len;
                largest = largest.max(window.len);
                windows.push(window.len);
            }
            assert!(pos < 256 * KIB || ahead > pos + 128 * KIB, "always something ahead");
            assert!(ahead.saturating_sub(pos) <= 11 * MIB, "bounded");
        }
        assert_eq!(windows[..6], [256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB]);
        assert_eq!(largest, 8 * MIB);
    }

    #[test]
    fn no_readahead_for_random_reads() {
        let mut state = handle();
        assert_eq!(state.on_read(0, 128 * KIB, FILE), None);
        let mut random = 7u64;
        let mut requested = 0;
        for _ in 0..10_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            requested +=
                state.on_read((random >> 20) % FILE, 4 * KIB, FILE).map_or(0, |window| window.len);
        }
        assert!(requested < 4 * MIB, "{requested} bytes asked for by 40 MB of random reads");
    }

    #[test]
    fn interleaved_streams_are_followed_apart() {
        let mut state = handle();
        let mut requested = [0; 6];
        for step in 0..200 {
            for stream in 0..6 {
                let base = stream * 100 * MIB;
                if let Some(window) = state.on_read(base + step * 64 * KIB, 64 * KIB, FILE) {
                    assert!(window.pos >= base && window.pos < base + 100 * MIB);
                    requested[stream as usize] += window.len;
                }
            }
        }
        assert!(requested.iter().all(|bytes| *bytes >= 12 * MIB), "{requested:?}");
    }

    #[test]
    fn parallel_reads_in_any_order_are_one_stream() {
        let mut state = handle();
        let mut requested = 0;
        for group in 0..50 {
            for part in [1, 0, 3, 2] {
                let pos = (group * 4 + part) * 64 * KIB;
                requested += state.on_read(pos, 64 * KIB, FILE).map_or(0, |window| window.len);
            }
        }
        assert!(requested > 12 * MIB);
        assert_eq!(state.streams.len(), 1);
    }

    /// Read-ahead treats a shuffled stream from a remote store as one stream. What the kernel makes
    /// of one reader with a large window: some requests under way, answered in any order.
    #[test]
    fn read_ahead_of_shuffled_stream() {
        let mut state = ReadAhead::new(ReadAheadConfig::remote(32 * MIB));
        let (mut ahead, mut requested) = (0, 0);
        for group in 0..FILE / 4 / MIB {
            for part in [2, 0, 3, 1] {
                let pos = group * MIB + part * 256 * KIB;
                if let Some(window) = state.on_read(pos, 256 * KIB, FILE) {
                    assert!(ahead == 0 || window.pos == ahead, "no gap, nothing twice");
                    ahead = window.pos + window.len;
                    requested += window.len;
                }
            }
        }
        assert!(requested > FILE / 4 - 4 * MIB, "{requested}");
    }

    /// Windows that stay unread shrink until read-ahead is off, and a long sequential run turns it
    /// on again.
    #[test]
    fn read_ahead_window_shrinking() {
        let mut state = handle();
        let mut requested = Vec::new();
        for burst in 0..60 {
            let base = (burst * 37 % 61) * 16 * MIB;
            let mut bytes = 0;
            for read in 0..3 {
                bytes += state
                    .on_read(base + read * 16 * KIB, 16 * KIB, FILE)
                    .map_or(0, |window| window.len);
            }
            requested.push(bytes);
        }
        assert!(requested[0] >= 256 * KIB);
        assert!(requested[40..].iter().all(|bytes| *bytes == 0), "{requested:?}");
        let run: u64 = (0..400)
            .filter_map(|read| state.on_read(1000 * MIB + read * 16 * KIB, 16 * KIB, 2 * FILE))
            .map(|window| window.len)
            .sum();
        assert!(run > 4 * MIB);
    }

    #[test]
    fn nothing_beyond_the_end_and_off_means_off() {
        let mut state = handle();
        for pos in (0..MIB).step_by(64 * KIB as usize) {
            if let Some(window) = state.on_read(pos, 64 * KIB, MIB) {
                assert!(window.pos + window.len <= MIB);
            }
        }
        assert_eq!(state.on_read(u64::MAX - 5, 100, MIB), None);
        let mut off =
            ReadAhead::new(ReadAheadConfig { window_max: 0, ..ReadAheadConfig::default() });
        assert!((0..100).all(|read| off.on_read(read * 4096, 4096, FILE).is_none()));
    }
}
