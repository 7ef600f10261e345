//! Objects against a model that keeps each one for itself.
#![allow(clippy::cast_possible_truncation, clippy::needless_for_each, reason = "small numbers, and one line for each step")]

use std::collections::BTreeMap;

use super::*;

/// Pages of the kernel's allocator for so many objects of each size, when it is fully compacted:
/// computed from its rule alone.
fn kernel_pages(counts: &BTreeMap<usize, usize>) -> usize {
    let sizes = Classes::new();
    let mut objects: BTreeMap<usize, usize> = BTreeMap::new();
    for (&bytes, &count) in counts {
        // The kernel's handle takes 8 bytes.
        let class = if bytes < HUGE_BYTES { sizes.of_size(bytes + 8) } else { None };
        *objects.entry(class.map_or(PAGE, |class| sizes.stride(class))).or_default() += count;
    }
    let pages = |(stride, count): (usize, usize)| {
        let chain = (1..=8).min_by_key(|pages| (pages * PAGE % stride, *pages)).unwrap();
        count.div_ceil(chain * PAGE / stride) * chain
    };
    objects.into_iter().map(pages).sum()
}

struct Model {
    objects: Objects,
    /// By owner: place and content.
    kept: BTreeMap<u32, (u64, Vec<u8>)>,
    sizes: BTreeMap<usize, usize>,
}

impl Model {
    fn new() -> Self {
        Self { objects: Objects::new(), kept: BTreeMap::new(), sizes: BTreeMap::new() }
    }

    fn remove(&mut self, owner: u32) {
        let (place, bytes) = self.kept.remove(&owner).unwrap();
        *self.sizes.get_mut(&bytes.len()).unwrap() -= 1;
        if let Some(moved) = self.objects.remove(bytes.len(), place) {
            self.kept.get_mut(&moved.owner).unwrap().0 = moved.place;
        }
    }

    fn insert(&mut self, owner: u32, bytes: Vec<u8>) {
        let expected = self.objects.frames_after(None, bytes.len());
        let place = self.objects.insert(owner, &bytes).unwrap();
        assert_eq!(self.objects.frames_used(), expected);
        *self.sizes.entry(bytes.len()).or_default() += 1;
        self.kept.insert(owner, (place, bytes));
    }

    fn change(&mut self, owner: u32, bytes: Vec<u8>) {
        let (place, old) = self.kept[&owner].clone();
        let expected = self.objects.frames_after(Some(old.len()), bytes.len());
        if self.objects.replace(old.len(), place, owner, &bytes) {
            *self.sizes.get_mut(&old.len()).unwrap() -= 1;
            *self.sizes.entry(bytes.len()).or_default() += 1;
            self.kept.insert(owner, (place, bytes));
        } else {
            self.remove(owner);
            self.insert(owner, bytes);
        }
        assert_eq!(self.objects.frames_used(), expected);
    }

    fn check(&self) {
        let mut buffer = [0; PAGE];
        for (owner, (place, bytes)) in &self.kept {
            assert!(self.objects.read(bytes.len(), *place, &mut buffer) == bytes, "object of {owner} at {place}");
        }
        let (ours, kernel) = (self.objects.frames_used(), kernel_pages(&self.sizes));
        assert!(ours <= kernel, "{ours} frames for what takes the kernel {kernel} pages");
    }
}

fn content(rng: &mut fastrand::Rng) -> Vec<u8> {
    let bytes = match rng.u32(0..8) {
        0 => PAGE,
        1 => rng.usize(1..64),
        2 => [3624, 3600, 2048 - 8, 24, 1][rng.usize(0..5)],
        _ => rng.usize(1..HUGE_BYTES),
    };
    (0..bytes).map(|_| rng.u8(..)).collect()
}

#[test]
fn objects_keep_their_bytes_and_take_no_more_pages_than_the_kernel() {
    for seed in 0..12 {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let mut model = Model::new();
        for step in 0..3000 {
            let owner = rng.u32(0..600);
            match (model.kept.contains_key(&owner), rng.u32(0..4)) {
                (false, _) => model.insert(owner, content(rng)),
                (true, 0..2) => model.remove(owner),
                (true, _) => model.change(owner, content(rng)),
            }
            if step % 500 == 499 {
                model.check();
            }
        }
        let owners: Vec<u32> = model.kept.keys().copied().collect();
        owners.into_iter().for_each(|owner| model.remove(owner));
        assert_eq!(model.objects.frames_used(), 0);
    }
}

#[test]
fn a_moved_object_names_its_owner() {
    let mut objects = Objects::new();
    let places: Vec<u64> = (0..3_u32).map(|owner| objects.insert(owner + 7, &[owner as u8; 1000]).unwrap()).collect();
    assert_eq!(places, [0, 1, 2]);
    assert_eq!(objects.remove(1000, 0), Some(Moved { owner: 9, place: 0 }));
    assert_eq!(objects.read(1000, 0, &mut [0; PAGE]), [2; 1000]);
    assert_eq!(objects.remove(1000, 1), None);
    assert_eq!(objects.remove(1000, 0), None);
    assert_eq!(objects.frames_used(), 0);
}

#[test]
fn gaps_of_many_objects_that_went_are_closed_and_every_other_keeps_its_bytes() {
    for seed in 0..8 {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let mut objects = Objects::new();
        let mut kept = std::collections::BTreeMap::new();
        let content = |owner: u32| vec![u8::try_from(owner % 251).unwrap(); [20, 800, 1700, 3000, 4096][owner as usize % 5]];
        let moves = |kept: &mut std::collections::BTreeMap<u32, u64>, moved: Moved| _ = kept.insert(moved.owner, moved.place);
        for round in 0..6_u32 {
            for owner in round * 400..round * 400 + 400 {
                kept.insert(owner, objects.insert(owner, &content(owner)).unwrap());
            }
            let owners: Vec<u32> = kept.keys().copied().filter(|_| rng.u32(0..5) > 0).collect();
            for owner in owners {
                let place = kept.remove(&owner).unwrap();
                if rng.u32(0..8) > 0 {
                    objects.remove_later(content(owner).len(), place);
                } else if let Some(moved) = objects.remove(content(owner).len(), place) {
                    moves(&mut kept, moved);
                }
            }
            while round != 3 && !objects.close_gaps(7, |moved| moves(&mut kept, moved)) {}
            assert_eq!(objects.has_gaps(), round == 3, "one round leaves its gaps to the next");
            for (owner, place) in &kept {
                let expected = content(*owner);
                assert!(objects.read(expected.len(), *place, &mut [0; PAGE]) == expected, "seed {seed}");
            }
        }
        let mut fresh = Objects::new();
        kept.keys().for_each(|owner| _ = fresh.insert(*owner, &content(*owner)).unwrap());
        assert_eq!(objects.frames_used(), fresh.frames_used(), "nothing lies empty");
    }
}
