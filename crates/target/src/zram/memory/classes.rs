//! The sizes that objects are kept in: those of the kernel's allocator for compressed pages, so that
//! the same data needs no more memory here than there.
//!
//! ```text
//!   object of n bytes ─▶ n + 4 bytes ─▶ the smallest class that is large enough
//!   classes   32, 48, 64, … 3632 | 4096        a step of 16, some merged into the next larger
//! ```
//!
//! The kernel keeps objects in chains of 1 to 8 pages: for each size the shortest chain with the
//! least left over. Sizes with equal chains of equally many objects are one class, the largest of
//! them. The kernel adds 8 bytes for its handle, where 4 name the page that owns the object here: so an
//! object goes to the kernel's class or the one below it, which makes up for codecs that need a few
//! bytes more.
//!
//! Source: facts of `mm/zsmalloc.c`, Linux 6.12, with 8 pages in the longest chain.

/// Bytes of a page and of the largest object.
pub(in super::super) const PAGE: usize = 4096;
/// Bytes that an object takes beyond its own.
pub(super) const HEAD: usize = 4;
/// Compressed size from which on a page is kept as it is: in the largest class below a page, 3632
/// bytes, the kernel has room for objects of up to 3624.
pub const HUGE_BYTES: usize = 3625;

/// Size of the smallest class, bytes.
const SMALLEST: usize = 32;
/// Step from one size to the next, bytes.
const STEP: usize = 16;
/// Sizes before merging.
const SIZES: usize = (PAGE - SMALLEST) / STEP + 1;
/// Pages in the longest chain.
const CHAIN_MAX: usize = 8;

/// Number of a class; classes are numbered by size, from the smallest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClassId(pub(super) u8);

/// All classes.
pub(super) struct Classes {
    /// Bytes that an object takes, class by class, ascending.
    strides: Vec<u32>,
    /// The class of each size before merging.
    of_size: Vec<ClassId>,
}

impl Classes {
    pub(super) fn new() -> Self {
        let mut descending: Vec<u32> = Vec::new();
        let mut chains = Vec::with_capacity(SIZES);
        let mut last = (0, 0);
        for at in (0..SIZES).rev() {
            let size = SMALLEST + STEP * at;
            let chain = chain_pages(size);
            let shape = (chain, chain * PAGE / size);
            if shape != last {
                descending.push(u32::try_from(size).expect("a size is at most a page"));
                last = shape;
            }
            chains.push(descending.len() - 1);
        }
        let count = descending.len();
        let id = |from_largest: usize| ClassId(u8::try_from(count - 1 - from_largest).expect("fewer than 256 classes"));
        descending.reverse();
        Self { strides: descending, of_size: chains.iter().rev().map(|&place| id(place)).collect() }
    }

    /// The class for an object of so many bytes; `None` for one that takes a page of its own.
    pub(super) fn of(&self, bytes: usize) -> Option<ClassId> {
        assert!(bytes > 0 && bytes <= PAGE, "an object has 1 to {PAGE} bytes, not {bytes}");
        if bytes >= HUGE_BYTES {
            return None;
        }
        self.of_size(bytes + HEAD)
    }

    /// The class that holds so many bytes, the head included.
    pub(super) fn of_size(&self, bytes: usize) -> Option<ClassId> {
        self.of_size.get(bytes.saturating_sub(SMALLEST).div_ceil(STEP)).copied()
    }

    /// Bytes that an object of this class takes.
    pub(super) fn stride(&self, class: ClassId) -> usize {
        self.strides[usize::from(class.0)] as usize
    }

    /// How many classes there are, that of whole pages included.
    pub(super) fn count(&self) -> usize {
        self.strides.len()
    }
}

/// Pages in the chain for objects of `size` bytes.
fn chain_pages(size: usize) -> usize {
    (1..=CHAIN_MAX).min_by_key(|pages| (pages * PAGE % size, *pages)).expect("there are chains")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classes_are_the_kernels() {
        let classes = Classes::new();
        assert_eq!(classes.count(), 119);
        let top: Vec<u32> = classes.strides.iter().rev().take(12).copied().collect();
        assert_eq!(top, [4096, 3632, 3584, 3504, 3408, 3264, 3184, 3072, 2976, 2912, 2864, 2720]);
        for size in [2048, 2176, 2192, 2224, 2272, 2336, 2384, 2448, 2512, 2560, 2592] {
            assert!(classes.strides.contains(&size), "{size}");
        }
    }

    #[test]
    fn an_object_and_its_head_fit_and_the_next_smaller_class_is_too_small() {
        let classes = Classes::new();
        for bytes in 1..HUGE_BYTES {
            let class = classes.of(bytes).unwrap();
            assert!(classes.stride(class) >= bytes + HEAD, "{bytes}");
            if class.0 > 0 {
                assert!(classes.stride(ClassId(class.0 - 1)) < bytes + HEAD, "{bytes}");
            }
        }
        assert_eq!(classes.of(3624).map(|class| classes.stride(class)), Some(3632));
        assert_eq!((classes.of(3625), classes.of(4096)), (None, None));
    }

    #[test]
    fn objects_lie_on_multiples_of_a_step_so_that_heads_are_never_cut() {
        let classes = Classes::new();
        assert!(classes.strides.iter().all(|&stride| (stride as usize).is_multiple_of(STEP)));
        const { assert!(HEAD <= STEP && PAGE.is_multiple_of(STEP)) };
    }
}
