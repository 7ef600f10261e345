//! What targets share that stand on others: whether they fit there, and the bios that wait while a
//! part of theirs is below.

use forebay_block::{Extent, SECTOR_BYTES, Sector, SectorCount, Target};

mod parked;
#[cfg(test)]
pub(crate) mod testing;

pub(crate) use parked::Parked;

/// Why a target cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// A length or count of 0.
    #[error("{kind}: {what} is 0: give at least 1")]
    Zero {
        /// The target that was to be made.
        kind: &'static str,
        /// What is 0.
        what: &'static str,
    },
    /// A range that is not inside the target below.
    #[error("{kind}: sectors {start}+{count} do not fit the {below} sectors below: choose a smaller length or offset")]
    Outside {
        /// The target that was to be made.
        kind: &'static str,
        /// First sector of the range.
        start: u64,
        /// Its length, sectors.
        count: u64,
        /// Size of the target below, sectors.
        below: u64,
    },
    /// A number that must be a multiple of another.
    #[error("{kind}: {what} {value} is not a multiple of {unit}")]
    NotMultiple {
        /// The target that was to be made.
        kind: &'static str,
        /// What is not.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Of what it must be a multiple.
        unit: u64,
    },
    /// The reactor has no room for another task.
    #[error("{kind}: this thread has too many tasks: use fewer devices on it")]
    TooManyTasks {
        /// The target that was to be made.
        kind: &'static str,
    },
}

pub(crate) fn check_multiple(kind: &'static str, what: &'static str, value: u64, unit: u64) -> Result<(), BuildError> {
    if value.is_multiple_of(unit) { Ok(()) } else { Err(BuildError::NotMultiple { kind, what, value, unit }) }
}

/// Whether `sectors` from `offset` on lie inside `below`, on its logical blocks.
pub(crate) fn check_fit(kind: &'static str, below: &dyn Target, offset: Sector, sectors: SectorCount) -> Result<(), BuildError> {
    if sectors.0 == 0 {
        return Err(BuildError::Zero { kind, what: "length" });
    }
    if !Extent::new(Sector(0), below.sectors()).contains(Extent::new(offset, sectors)) {
        return Err(BuildError::Outside { kind, start: offset.0, count: sectors.0, below: below.sectors().0 });
    }
    let block = u64::from(below.limits().logical_bytes / SECTOR_BYTES);
    check_multiple(kind, "offset", offset.0, block)?;
    check_multiple(kind, "length", sectors.0, block)
}
