//! What a merge tells about itself, and the kernel's line of it.
//!
//! Units: sectors of 512 bytes, chunks of the snapshot.

use std::fmt;

use super::super::Usage;

/// How a merge is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MergeCondition {
    /// It goes on, or is done.
    #[default]
    Active,
    /// An error ended it.
    Failed,
    /// The snapshot was lost before: all that there is is the origin.
    Invalid,
}

/// What a merge tells about itself; printed as the kernel's status line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeStatus {
    /// How it is.
    pub condition: MergeCondition,
    /// What its store has in use.
    pub usage: Usage,
    /// Chunks still to be merged.
    pub left: u64,
    /// Steps so far, each with one flush.
    pub steps: u64,
}

impl fmt::Display for MergeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Usage { used, total, metadata } = self.usage;
        match self.condition {
            MergeCondition::Active => write!(f, "{used}/{total} {metadata}"),
            MergeCondition::Failed => f.write_str("Merge failed"),
            MergeCondition::Invalid => f.write_str("Invalid"),
        }
    }
}
