//! Known bugs of other storage systems, planted on purpose, so that the tests prove that they would find them.
//!
//! ```text
//!   forebay-sim --replant M1 … ─▶ plant("M1") ─▶ if planted(Bug::M1CommitWithoutFlush) { … } ─▶ a check must fail
//! ```
//!
//! 1. Only the feature `replant` has bugs. Without it [`planted`] is a constant `false` and the compiler drops
//!    whatever stands behind it; no shipped program is built with the feature, which a test looks after.
//! 2. At most one bug is planted at a time, for the thread that asked: simulated runs have one thread.
//!
//! M12 (a session's state kept over STARTTLS) is not here: there is no TLS.
//!
//! Errors: [`plant`] says in one sentence what is wrong with a name.

/// A bug that can be planted. Each is one that another system has had; the numbers are kept when one goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The write cache says that a group is committed before its data is durable.
    M1CommitWithoutFlush,
    /// A restarted write cache believes what its predecessor wrote before that is durable.
    M2OldInstanceNotSettled,
    /// The write cache enters blocks as dirty before their data is on the fast device.
    M3DirtyBeforeData,
    /// The newest committed group counts as not committed when a dirty cache starts again.
    M4DirtyLostOnRestart,
    /// Chunks of a store whose entries a crash prevented, in front of others that have theirs, are never used again.
    M5SpaceLeaked,
    /// A snapshot that is invalidated overwrites its header with what stands in a shared buffer.
    M6HeaderRace,
    /// Exceptions behind the first metadata area are not loaded.
    M7AreaNotLoaded,
    /// A page that changes while its block is on its way to the backing device loses the change.
    M8PageChangedMeanwhile,
    /// A commit of a clone overwrites both copies of a page at once.
    M9LiveSlotOverwritten,
    /// A mirror's writes share the place where their ends are collected.
    M10SharedRequest,
    /// A copy goes on as if a read that failed had succeeded.
    M11ReadErrorDropped,
    /// A copy to several destinations writes nothing to the second and those behind it.
    M13SecondLegEmpty,
    /// A flush of the origin that failed is forgotten: the next one succeeds.
    M14FlushErrorForgotten,
    /// A transfer that was cut short counts as a whole one.
    M15ShortAsFull,
    /// A clone calls regions hydrated before their data is durable on the destination.
    M16MetadataBeforeData,
}

#[cfg(feature = "replant")]
mod soil {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        pub(super) static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Each bug with its name and where it was found first.
    pub(super) const BUGS: [(Bug, &str, &str); 15] = [
        (Bug::M1CommitWithoutFlush, "M1", "dm-writecache aa9509209c5a: a commit without the flush in front of it"),
        (Bug::M2OldInstanceNotSettled, "M2", "dm-writecache 31b22120194b: metadata read before the old instance had settled"),
        (Bug::M3DirtyBeforeData, "M3", "Open CAS #832: a block is dirty before its data is there"),
        (Bug::M4DirtyLostOnRestart, "M4", "Open CAS #253: dirty data lost when a dirty cache starts again"),
        (Bug::M5SpaceLeaked, "M5", "dm-snapshot 230c83afdd9c: space leaked by entries out of order"),
        (Bug::M6HeaderRace, "M6", "dm-snapshot 61578dcd3faf: the header damaged by an invalidation"),
        (Bug::M7AreaNotLoaded, "M7", "dm-snapshot 2c945820ca: a metadata area not loaded"),
        (Bug::M8PageChangedMeanwhile, "M8", "zram, kernel bug 219548: a page changed between two looks at it"),
        (Bug::M9LiveSlotOverwritten, "M9", "dm-pcache ebbb90344a7d: the live copy of metadata overwritten"),
        (Bug::M10SharedRequest, "M10", "QEMU's FUSE export: a request's memory shared by nested requests"),
        (Bug::M11ReadErrorDropped, "M11", "nbdcopy, CVE-2022-0485: errors of asynchronous reads dropped"),
        (Bug::M13SecondLegEmpty, "M13", "dm-cache b844fe691897: nothing written to the second leg"),
        (Bug::M14FlushErrorForgotten, "M14", "the fsync study of 2020: a failed flush forgotten on retry"),
        (Bug::M15ShortAsFull, "M15", "many programs: a short transfer taken as a full one"),
        (Bug::M16MetadataBeforeData, "M16", "dm-clone e6a505f3f9fa: metadata committed before the copied data"),
    ];
}

/// Whether `bug` is planted: never without the feature `replant`.
#[cfg(not(feature = "replant"))]
#[inline]
#[must_use]
pub const fn planted(bug: Bug) -> bool {
    let _ = bug;
    false
}

/// Whether `bug` is planted in this thread.
#[cfg(feature = "replant")]
#[inline]
#[must_use]
pub fn planted(bug: Bug) -> bool {
    soil::PLANTED.get() == Some(bug)
}

/// Names of the bugs that this build has, and where each comes from: none without the feature.
#[must_use]
pub fn bugs() -> Vec<(&'static str, &'static str)> {
    #[cfg(feature = "replant")]
    return soil::BUGS.iter().map(|(_, name, origin)| (*name, *origin)).collect();
    #[cfg(not(feature = "replant"))]
    Vec::new()
}

/// Plants the bug of this name in this thread.
///
/// # Errors
/// Where there is no such bug, or this build has none.
pub fn plant(name: &str) -> Result<(), String> {
    #[cfg(feature = "replant")]
    if let Some((bug, ..)) = soil::BUGS.iter().find(|bug| bug.1 == name) {
        soil::PLANTED.set(Some(*bug));
        return Ok(());
    }
    if bugs().is_empty() {
        return Err(format!("bug {name} cannot be planted in this build: build forebay-sim with --features replant"));
    }
    Err(format!("there is no bug {name}: the names are M1 to M16 without M12"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_planted_unless_somebody_asked() {
        assert!(!planted(Bug::M1CommitWithoutFlush));
        assert!(plant("M12").is_err());
        assert_eq!(plant("M1").is_ok(), cfg!(feature = "replant"));
        assert_eq!(planted(Bug::M1CommitWithoutFlush), cfg!(feature = "replant"));
        assert!(!planted(Bug::M16MetadataBeforeData));
    }
}
