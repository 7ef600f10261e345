//! Entries that do not overlap, sorted by origin block, in chunks under an ordered map.
//!
//! ```text
//!   key 0        key 700          key 2100
//!   ▼            ▼                ▼
//!   [ 3 9 40 … ] [ 705 710 … ] [ 2100 2400 … ]      a key is a lower bound of its chunk
//! ```
//!
//! 1. A chunk's key is at most the origin of its first entry, and at least the end of the last entry
//!    of the chunk in front. So an entry that begins at block b is in the chunk with the largest key
//!    up to b, and removing a chunk's first entry moves nothing.
//! 2. No chunk is empty, and entries never overlap.
//! 3. An entry that was put or changed was joined with neighbours that continue it.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use super::State;
use super::chunk::{CHUNK_MAX, CHUNK_MIN, Chunk, ENTRY_BLOCKS_MAX, Entry, Spare, begun};

/// Most entries of a chunk made of two small ones; it can grow for a while before it is split.
const JOINED_MAX: usize = 96;

/// Where an entry is: the key of its chunk and its index there.
#[derive(Clone, Copy)]
pub(super) struct Place {
    key: u64,
    at: usize,
}

/// The chunks.
#[derive(Default)]
pub(super) struct Tree {
    chunks: BTreeMap<u64, Chunk>,
    spare: Spare,
    entries: u64,
}

impl Tree {
    /// Number of entries.
    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    /// Bytes of all chunks, spare ones included, and at most what the map above them takes.
    pub(super) fn memory_bytes(&self) -> usize {
        // The standard ordered map has nodes of 11 keys, which are at least 5 keys full but for the
        // first one; the upper levels, with one pointer more for each key, add at most a fifth.
        let key_bytes = size_of::<u64>() + size_of::<Chunk>() + 2;
        let nodes = if self.chunks.is_empty() { 0 } else { key_bytes * 11 + self.chunks.len() * key_bytes * 11 / 5 * 6 / 5 };
        self.spare.room() * size_of::<Entry>() + self.spare.list_bytes() + nodes
    }

    /// The first entry that ends behind `block`, and all that follow.
    pub(super) fn entries_from(&self, block: u64) -> Entries<'_> {
        let Some((&key, chunk)) = self.chunks.range(..=block).next_back() else {
            return Entries { tree: self, key: None, rest: &[] };
        };
        let at = begun(chunk, block);
        let at = if at > 0 && chunk[at - 1].end() > block { at - 1 } else { at };
        Entries { tree: self, key: Some(key), rest: &chunk[at..] }
    }

    /// The first entry that has `shift` and a block in `start..end`.
    pub(super) fn find_shifted(&self, start: u64, end: u64, shift: u64) -> Option<(Place, Entry)> {
        let mut entries = self.entries_from(start);
        while start < end
            && let Some(entry) = entries.peek_below(end)
            && entry.origin() < end
        {
            entries.next();
            if entry.shift() == shift {
                let key = entries.key.expect("an entry came from a chunk");
                let at = self.chunks[&key].len() - entries.rest.len() - 1;
                return Some((Place { key, at }, entry));
            }
        }
        None
    }

    /// Replaces the entry at `place` by one of the same blocks.
    pub(super) fn change(&mut self, place: Place, entry: Entry) {
        let chunk = self.chunks.get_mut(&place.key).expect("a place names a chunk");
        chunk[place.at] = entry;
        let entries = self.entries;
        let place = self.join_left(place);
        self.join_right(place);
        if self.entries < entries {
            self.tidy(place.key);
        }
    }

    /// Adds an entry where there is none.
    pub(super) fn put(&mut self, entry: Entry) {
        let key = self.home_of_new(entry.origin());
        let chunk = self.chunks.get_mut(&key).expect("the key was just found");
        let at = begun(chunk, entry.origin());
        if at > 0 && chunk[at - 1].joins(entry) {
            chunk[at - 1] = chunk[at - 1].grown(entry.count());
            return self.join_right(Place { key, at: at - 1 });
        }
        assert!(at == 0 || chunk[at - 1].end() <= entry.origin(), "block {} is taken", entry.origin());
        let place = self.insert(Place { key, at }, entry);
        let place = if place.at == 0 { self.join_left(place) } else { place };
        self.join_right(place);
    }

    /// Cuts `start..end` out and hands what was there to `removed`, in order.
    pub(super) fn cut(&mut self, start: u64, end: u64, mut removed: impl FnMut(Entry)) {
        let home = self.chunks.range(..=start).next_back().or_else(|| self.chunks.first_key_value());
        let Some((&first_key, _)) = home else { return };
        let mut key = first_key;
        while key < end {
            if !self.cut_in_chunk(key, start, end, &mut removed) {
                break;
            }
            let next = self.next_chunk(key).map(|(next, _)| next);
            self.remove_if_empty(key);
            match next {
                Some(next) => key = next,
                None => break,
            }
        }
        self.tidy(first_key);
        if key != first_key {
            self.tidy(key);
        }
    }

    /// Cuts `start..end` out of one chunk, which may leave it empty. Tells whether the next chunk can
    /// hold a part of the range too.
    fn cut_in_chunk(&mut self, key: u64, start: u64, end: u64, removed: &mut impl FnMut(Entry)) -> bool {
        let chunk = self.chunks.get_mut(&key).expect("the key of a chunk");
        let mut first = begun(chunk, start);
        if first > 0 && chunk[first - 1].end() > start {
            first -= 1;
            let entry = chunk[first];
            if entry.origin() < start {
                removed(entry.clipped(start, end));
                chunk[first] = entry.clipped(entry.origin(), start);
                first += 1;
                if entry.end() > end {
                    self.insert(Place { key, at: first }, entry.clipped(end, entry.end()));
                    return false;
                }
            }
        }
        let mut behind = first;
        while let Some(&entry) = chunk.get(behind)
            && entry.end() <= end
        {
            removed(entry);
            behind += 1;
        }
        let reached_end = behind == chunk.len();
        if let Some(entry) = chunk.get_mut(behind)
            && entry.origin() < end
        {
            removed(entry.clipped(entry.origin(), end));
            *entry = entry.clipped(end, entry.end());
        }
        chunk.drain(first..behind);
        self.entries -= (behind - first) as u64;
        reached_end
    }

    fn next_chunk(&self, key: u64) -> Option<(u64, &Chunk)> {
        self.chunks.range((Excluded(key), Unbounded)).next().map(|(&key, chunk)| (key, chunk))
    }

    /// The key of the chunk where an entry that begins at `origin` belongs.
    fn home_of_new(&mut self, origin: u64) -> u64 {
        if let Some((&key, _)) = self.chunks.range(..=origin).next_back() {
            return key;
        }
        let first = self.chunks.pop_first().map_or_else(|| self.spare.take(1), |(_, chunk)| chunk);
        self.chunks.insert(0, first);
        0
    }

    /// Inserts without joining, making room first; tells where the entry went.
    fn insert(&mut self, place: Place, entry: Entry) -> Place {
        self.entries += 1;
        let Place { key, at } = place;
        let chunk = self.chunks.get_mut(&key).expect("a place names a chunk");
        if chunk.len() < CHUNK_MAX {
            self.spare.insert(chunk, at, entry);
            return place;
        }
        if at == CHUNK_MAX {
            let end = chunk[CHUNK_MAX - 1].end();
            return self.insert_behind(key, end, entry);
        }
        if at == 0 {
            let mut alone = self.spare.take(1);
            alone.push(entry);
            let full = std::mem::replace(chunk, alone);
            self.chunks.insert(full[0].origin(), full);
            return place;
        }
        let half = CHUNK_MAX / 2;
        let mut right = self.spare.split_off(chunk, half);
        let right_key = right[0].origin();
        let place = if at > half {
            self.spare.insert(&mut right, at - half, entry);
            Place { key: right_key, at: at - half }
        } else {
            self.spare.insert(chunk, at, entry);
            place
        };
        self.chunks.insert(right_key, right);
        place
    }

    /// Inserts behind the full chunk `key`, whose last entry ends at `end`: in front of the next
    /// chunk when that has room, else in a chunk of its own. So both rising and falling sequences
    /// leave full chunks.
    fn insert_behind(&mut self, key: u64, end: u64, entry: Entry) -> Place {
        let next = self.next_chunk(key).filter(|(_, chunk)| chunk.len() < CHUNK_MAX).map(|(next, _)| next);
        let Some(next) = next else {
            let mut alone = self.spare.take(1);
            alone.push(entry);
            self.chunks.insert(entry.origin(), alone);
            return Place { key: entry.origin(), at: 0 };
        };
        let mut chunk = self.chunks.remove(&next).expect("the next chunk is there");
        self.spare.insert(&mut chunk, 0, entry);
        self.chunks.insert(end, chunk);
        Place { key: end, at: 0 }
    }

    /// Joins the entry at `place` with the one in front, where that is continued by it.
    fn join_left(&mut self, place: Place) -> Place {
        let Place { key, at } = place;
        let chunk = self.chunks.get_mut(&key).expect("a place names a chunk");
        let entry = chunk[at];
        if at > 0 {
            if !chunk[at - 1].joins(entry) {
                return place;
            }
            chunk[at - 1] = chunk[at - 1].grown(entry.count());
            chunk.remove(at);
            self.spare.shrink(chunk);
            self.entries -= 1;
            return Place { key, at: at - 1 };
        }
        if key != entry.origin() {
            // The chunk in front ends at the key at the latest.
            return place;
        }
        let Some((&front_key, front)) = self.chunks.range_mut(..key).next_back() else { return place };
        let at = front.len() - 1;
        if !front[at].joins(entry) {
            return place;
        }
        front[at] = front[at].grown(entry.count());
        self.remove_first(key);
        Place { key: front_key, at }
    }

    /// Joins the entry at `place` with the one behind, where that continues it, and moves the next
    /// chunk's key up where the entry has grown past it.
    fn join_right(&mut self, place: Place) {
        let Place { key, at } = place;
        let chunk = self.chunks.get_mut(&key).expect("a place names a chunk");
        let entry = chunk[at];
        if let Some(&behind) = chunk.get(at + 1) {
            if entry.joins(behind) {
                chunk[at] = entry.grown(behind.count());
                chunk.remove(at + 1);
                self.entries -= 1;
                self.tidy(key);
            }
            return;
        }
        let Some((next, next_chunk)) = self.next_chunk(key).filter(|&(next, _)| next <= entry.end()) else {
            return;
        };
        let behind = next_chunk[0];
        let joins = entry.joins(behind);
        if next < entry.end() {
            let moved = self.chunks.remove(&next).expect("the next chunk is there");
            self.chunks.insert(behind.origin(), moved);
        }
        if joins {
            let chunk = self.chunks.get_mut(&key).expect("a place names a chunk");
            chunk[at] = entry.grown(behind.count());
            self.remove_first(behind.origin());
        }
    }

    /// Removes the first entry of a chunk, and the chunk with its last; moves its key up.
    fn remove_first(&mut self, key: u64) {
        let mut chunk = self.chunks.remove(&key).expect("the key of a chunk");
        chunk.remove(0);
        self.entries -= 1;
        match chunk.first() {
            Some(first) => {
                let key = first.origin();
                self.chunks.insert(key, chunk);
                self.tidy(key);
            }
            None => self.spare.give(chunk),
        }
    }

    fn remove_if_empty(&mut self, key: u64) {
        if self.chunks.get(&key).is_some_and(Vec::is_empty) {
            let chunk = self.chunks.remove(&key).expect("it was just seen");
            self.spare.give(chunk);
        }
    }

    /// Gives memory back after removals: an empty chunk goes, a small one joins a neighbour.
    fn tidy(&mut self, key: u64) {
        self.remove_if_empty(key);
        let Some(chunk) = self.chunks.get_mut(&key) else { return };
        self.spare.shrink(chunk);
        let len = chunk.len();
        if len >= CHUNK_MIN {
            return;
        }
        let fits = |other: &Chunk| len + other.len() <= JOINED_MAX;
        if let Some((next, _)) = self.next_chunk(key).filter(|(_, chunk)| fits(chunk)) {
            self.append(key, next);
        } else if let Some((&front, _)) = self.chunks.range(..key).next_back().filter(|(_, chunk)| fits(chunk)) {
            self.append(front, key);
        }
    }

    fn append(&mut self, left: u64, right: u64) {
        let right = self.chunks.remove(&right).expect("the key of a chunk");
        let left = self.chunks.get_mut(&left).expect("the key of a chunk");
        self.spare.append(left, right);
    }

    /// Checks every invariant; for tests.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut end = 0;
        let mut entries = 0;
        for (&key, chunk) in &self.chunks {
            assert!(!chunk.is_empty() && chunk.len() <= CHUNK_MAX);
            assert!(chunk.capacity() <= chunk.len() + 16, "room {} for {}", chunk.capacity(), chunk.len());
            assert!(key >= end && key <= chunk[0].origin());
            for entry in chunk {
                assert!(entry.origin() >= end);
                end = entry.end();
            }
            entries += chunk.len() as u64;
        }
        assert_eq!(entries, self.entries);
    }
}

/// Makes a tree of entries that come sorted and apart, in full chunks.
#[derive(Default)]
pub(super) struct TreeBuilder {
    /// Keys and full chunks.
    full: Vec<(u64, Chunk)>,
    /// The chunk that is being filled.
    chunk: Chunk,
    spare: Spare,
    entries: u64,
    /// Where the last entry ends, and its shift.
    end: u64,
    shift: u64,
}

impl TreeBuilder {
    /// Adds an entry behind all others.
    #[inline]
    pub(super) fn push(&mut self, origin: u64, slot: u32, count: u32, state: State) {
        assert!(origin >= self.end, "origin block {origin} is out of order");
        let shift = u64::from(slot).wrapping_sub(origin);
        if origin == self.end && shift == self.shift && self.join(count, state) {
            self.end += u64::from(count);
            return;
        }
        if self.chunk.len() == self.chunk.capacity() {
            self.next_chunk();
        }
        self.chunk.push(Entry::new(origin, slot, count, state));
        self.end = origin + u64::from(count);
        self.shift = shift;
        self.entries += 1;
    }

    /// Makes the last entry longer where it can be.
    fn join(&mut self, count: u32, state: State) -> bool {
        match self.chunk.last_mut() {
            Some(last) if last.state() == state && last.count() + count <= ENTRY_BLOCKS_MAX => {
                *last = last.grown(count);
                true
            }
            _ => false,
        }
    }

    /// Begins a chunk; the one before is full.
    #[cold]
    fn next_chunk(&mut self) {
        self.close_chunk();
        self.chunk = self.spare.take(CHUNK_MAX);
    }

    /// The tree.
    pub(super) fn finish(mut self) -> Tree {
        self.spare.shrink(&mut self.chunk);
        self.close_chunk();
        Tree { chunks: self.full.into_iter().collect(), spare: self.spare, entries: self.entries }
    }

    fn close_chunk(&mut self) {
        if let Some(first) = self.chunk.first() {
            self.full.push((first.origin(), std::mem::take(&mut self.chunk)));
        }
    }
}

/// Entries in order; see [`Tree::entries_from`].
#[derive(Clone)]
pub(super) struct Entries<'a> {
    tree: &'a Tree,
    key: Option<u64>,
    rest: &'a [Entry],
}

impl Entries<'_> {
    /// The next entry, without passing it, unless it begins at or behind `end` in a later chunk.
    pub(super) fn peek_below(&mut self, end: u64) -> Option<Entry> {
        if self.rest.is_empty() {
            let (key, chunk) = match self.key {
                Some(key) => self.tree.next_chunk(key)?,
                None => self.tree.chunks.first_key_value().map(|(&key, chunk)| (key, chunk))?,
            };
            if key >= end {
                return None;
            }
            self.key = Some(key);
            self.rest = chunk;
        }
        self.rest.first().copied()
    }
}

impl Iterator for Entries<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let entry = self.peek_below(u64::MAX)?;
        self.rest = &self.rest[1..];
        Some(entry)
    }
}
