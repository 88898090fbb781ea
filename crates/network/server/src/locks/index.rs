//! All ranges of one file, of all owners: which of them is in the way of a lock?
//!
//! A treap (Seidel and Aragon, "Randomized Search Trees", 1996) ordered by (first byte, owner), in
//! which every node also has the largest last byte below it, of all ranges and of exclusive ones:
//! the interval tree of Cormen et al., "Introduction to Algorithms", chapter 14.3, twice. A shared
//! lock so never looks at the shared ones of others, however many. Expected O(log n) for a change,
//! O(log n + ranges found) for a search. Priorities come from a counter through a mixing function:
//! the same calls build the same tree, and callers cannot choose its shape by the ranges they lock.

use std::ops::ControlFlow;

use kestrel_types::wire::LockMode;

use super::LockOwner;

/// No node.
const NIL: u32 = u32::MAX;

/// A range that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    pub owner: LockOwner,
    pub start: u64,
    pub end: u64,
    pub mode: LockMode,
    pub pid: u32,
}

#[derive(Debug, Clone)]
struct Node {
    held: Holder,
    priority: u64,
    left: u32,
    right: u32,
    /// Largest last byte below and here.
    reach: u64,
    /// Largest last byte of an exclusive range below and here, plus one; 0 if there is none.
    reach_write: u64,
}

/// The ranges of a file.
#[derive(Debug, Clone)]
pub struct Index {
    nodes: Vec<Node>,
    free: Vec<u32>,
    root: u32,
    drawn: u64,
}

impl Default for Index {
    fn default() -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), root: NIL, drawn: 0 }
    }
}

impl Index {
    /// Adds a range. There is none of this owner with the same first byte.
    pub fn insert(&mut self, held: Holder) {
        let priority = self.draw();
        let node = Node { held, priority, left: NIL, right: NIL, reach: 0, reach_write: 0 };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                // The limit of ranges (`LockLimits::ranges_max`) is far below.
                (self.nodes.len() - 1) as u32
            }
        };
        self.update(at);
        let (left, right) = self.split(self.root, (held.start, held.owner));
        let left = self.merge(left, at);
        self.root = self.merge(left, right);
    }

    /// Takes a range out.
    pub fn remove(&mut self, start: u64, owner: LockOwner) {
        self.root = self.remove_from(self.root, (start, owner));
    }

    /// Shows the ranges of other owners that exclude a lock of this mode on `start..=end`, by
    /// ascending first byte.
    pub fn in_the_way(
        &self,
        owner: LockOwner,
        (start, end): (u64, u64),
        mode: LockMode,
        see: &mut dyn FnMut(&Holder) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.search(self.root, &Wanted { owner, start, end, mode }, see)
    }

    fn search(
        &self,
        at: u32,
        wanted: &Wanted,
        see: &mut dyn FnMut(&Holder) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let Some(node) = self.nodes.get(at as usize) else { return ControlFlow::Continue(()) };
        let reaches = match wanted.mode {
            LockMode::Read => node.reach_write > wanted.start,
            LockMode::Write => node.reach >= wanted.start,
        };
        if !reaches {
            return ControlFlow::Continue(());
        }
        self.search(node.left, wanted, see)?;
        if node.held.start > wanted.end {
            return ControlFlow::Continue(());
        }
        let held = &node.held;
        let excludes = wanted.mode == LockMode::Write || held.mode == LockMode::Write;
        if excludes && held.owner != wanted.owner && held.end >= wanted.start {
            see(held)?;
        }
        self.search(node.right, wanted, see)
    }

    /// Cuts a tree in two: keys below `key`, and the others.
    fn split(&mut self, at: u32, key: (u64, LockOwner)) -> (u32, u32) {
        if at == NIL {
            return (NIL, NIL);
        }
        let node = &self.nodes[at as usize];
        if (node.held.start, node.held.owner) < key {
            let (left, right) = self.split(node.right, key);
            self.nodes[at as usize].right = left;
            self.update(at);
            (at, right)
        } else {
            let (left, right) = self.split(node.left, key);
            self.nodes[at as usize].left = right;
            self.update(at);
            (left, at)
        }
    }

    /// Joins two trees; all keys of the first are below those of the second.
    fn merge(&mut self, left: u32, right: u32) -> u32 {
        if left == NIL {
            return right;
        }
        if right == NIL {
            return left;
        }
        let (l, r) = (&self.nodes[left as usize], &self.nodes[right as usize]);
        if l.priority > r.priority {
            let below = self.merge(l.right, right);
            self.nodes[left as usize].right = below;
            self.update(left);
            left
        } else {
            let below = self.merge(left, r.left);
            self.nodes[right as usize].left = below;
            self.update(right);
            right
        }
    }

    fn remove_from(&mut self, at: u32, key: (u64, LockOwner)) -> u32 {
        if at == NIL {
            debug_assert!(false, "a range that is not there is taken out");
            return NIL;
        }
        let node = &self.nodes[at as usize];
        let (left, right) = (node.left, node.right);
        match key.cmp(&(node.held.start, node.held.owner)) {
            std::cmp::Ordering::Equal => {
                self.free.push(at);
                return self.merge(left, right);
            }
            std::cmp::Ordering::Less => {
                let below = self.remove_from(left, key);
                self.nodes[at as usize].left = below;
            }
            std::cmp::Ordering::Greater => {
                let below = self.remove_from(right, key);
                self.nodes[at as usize].right = below;
            }
        }
        self.update(at);
        at
    }

    fn update(&mut self, at: u32) {
        let node = &self.nodes[at as usize];
        let (mut reach, mut reach_write) = (node.held.end, 0);
        if node.held.mode == LockMode::Write {
            // Offsets are at most `LOCK_END`, half of what fits.
            reach_write = node.held.end + 1;
        }
        for child in [node.left, node.right] {
            if let Some(child) = self.nodes.get(child as usize) {
                reach = reach.max(child.reach);
                reach_write = reach_write.max(child.reach_write);
            }
        }
        let node = &mut self.nodes[at as usize];
        (node.reach, node.reach_write) = (reach, reach_write);
    }

    /// SplitMix64 (Steele, Lea and Flood, 2014).
    fn draw(&mut self) -> u64 {
        self.drawn = self.drawn.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.drawn;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

struct Wanted {
    owner: LockOwner,
    start: u64,
    end: u64,
    mode: LockMode,
}
