//! Memory that objects are coded in, and large reads decoded.
//!
//! Fresh memory of the size of an object comes from the system page by page, zeroed: that can cost
//! more than encrypting what is then written to it. So some of it is kept.

use parking_lot::Mutex;

/// Memory kept while it is not used by default, bytes: two packs or eight blocks of usual size.
pub(super) const KEPT_BYTES_MAX: usize = 40 << 20;

/// Buffers that were used before.
pub(super) struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
    kept_max: usize,
}

impl Default for Buffers {
    fn default() -> Self {
        Self::new(KEPT_BYTES_MAX)
    }
}

impl Buffers {
    /// Keeps at most `kept_max` bytes of what is not used.
    pub fn new(kept_max: usize) -> Self {
        Self { free: Mutex::default(), kept_max }
    }

    /// An empty buffer with room for `bytes`.
    pub fn take(&self, bytes: usize) -> Vec<u8> {
        let mut free = self.free.lock();
        let fitting = free.iter().position(|buffer| buffer.capacity() >= bytes);
        let mut buffer = fitting.map(|index| free.swap_remove(index)).unwrap_or_default();
        drop(free);
        buffer.clear();
        buffer.reserve_exact(bytes);
        buffer
    }

    /// Gives a buffer back. The oldest are dropped if too much is kept.
    pub fn give(&self, buffer: Vec<u8>) {
        let mut free = self.free.lock();
        free.push(buffer);
        let mut kept: usize = free.iter().map(Vec::capacity).sum();
        let surplus = free.iter().take_while(|buffer| {
            let is_too_much = kept > self.kept_max;
            kept -= buffer.capacity();
            is_too_much
        });
        let surplus = surplus.count();
        let dropped: Vec<Vec<u8>> = free.drain(..surplus).collect();
        // Memory is given back outside the lock.
        drop(free);
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_bounded() {
        let buffers = Buffers::default();
        let mut buffer = buffers.take(1 << 20);
        buffer.push(7);
        let address = buffer.as_ptr();
        buffers.give(buffer);
        let larger = buffers.take(2 << 20);
        assert_ne!(larger.as_ptr(), address, "too small");
        let again = buffers.take(1 << 20);
        assert!(again.is_empty() && again.as_ptr() == address);
        for _ in 0..3 {
            let many: Vec<_> = (0..20).map(|_| buffers.take(4 << 20)).collect();
            many.into_iter().for_each(|buffer| buffers.give(buffer));
            let kept: usize = buffers.free.lock().iter().map(Vec::capacity).sum();
            assert!(kept <= KEPT_BYTES_MAX && kept > KEPT_BYTES_MAX / 2);
        }
        buffers.give(Vec::with_capacity(KEPT_BYTES_MAX + 1));
        assert!(buffers.free.lock().is_empty());
    }
}
