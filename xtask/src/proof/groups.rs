//! The parts of the product whose proof is counted one by one: which files belong to which, and what each has to reach.
//!
//! 1. A file belongs to the first group of [`GROUPS`] that names it or a folder above it: single files stand before folders.
//! 2. Files of tests belong to none: they prove, and are not to be proved.

/// Files that are looked at together.
pub struct Group {
    /// What it is called in tables and on the command line.
    pub name: &'static str,
    /// Lines in a hundred that tests must run; `None` where the figure is only shown.
    pub floor_percent: Option<u64>,
    /// Whether `cargo xtask mutants` changes its code.
    pub mutated: bool,
    /// Files and folders, from the repository's root.
    pub paths: &'static [&'static str],
}

/// All groups. What others wrote and may be hostile comes first, and must be proved best.
pub const GROUPS: [Group; 17] = [
    Group {
        name: "formats: writecache and its side file",
        floor_percent: Some(95),
        mutated: true,
        paths: &[
            "crates/target/src/cache/disk/entry.rs",
            "crates/target/src/cache/disk/format.rs",
            "crates/target/src/cache/disk/side.rs",
            "crates/target/src/cache/disk/side/",
        ],
    },
    Group {
        name: "formats: snapshot store",
        floor_percent: Some(95),
        mutated: true,
        paths: &["crates/target/src/snapshot/disk/"],
    },
    Group {
        name: "formats: mirror log, write log, clone metadata",
        floor_percent: Some(95),
        mutated: true,
        paths: &[
            "crates/target/src/mirror/log/format.rs",
            "crates/target/src/log/format.rs",
            "crates/target/src/clone/format.rs",
        ],
    },
    Group {
        name: "formats: copy journal",
        floor_percent: Some(95),
        mutated: true,
        paths: &["crates/target/src/copy/journal.rs"],
    },
    Group {
        name: "formats: zram images and slots",
        floor_percent: Some(95),
        mutated: true,
        paths: &["crates/target/src/zram/image/", "crates/target/src/zram/table.rs"],
    },
    Group {
        name: "recovery",
        floor_percent: Some(95),
        mutated: true,
        paths: &[
            "crates/target/src/cache/disk/",
            "crates/target/src/clone/metadata.rs",
            "crates/target/src/mirror/log/",
            "crates/target/src/snapshot/store.rs",
        ],
    },
    Group { name: "wire: NBD server and client", floor_percent: Some(95), mutated: true, paths: &["crates/nbd/src/"] },
    Group { name: "block", floor_percent: Some(95), mutated: true, paths: &["crates/block/src/"] },
    Group { name: "reactor", floor_percent: None, mutated: false, paths: &["crates/reactor/src/"] },
    Group { name: "device: NBD client", floor_percent: None, mutated: false, paths: &["crates/device/src/nbd/"] },
    Group { name: "device: files, memory", floor_percent: None, mutated: false, paths: &["crates/device/src/"] },
    Group { name: "target: write cache", floor_percent: None, mutated: false, paths: &["crates/target/src/cache/"] },
    Group { name: "target: compressed RAM disk", floor_percent: None, mutated: false, paths: &["crates/target/src/zram/"] },
    Group {
        name: "target: snapshot, mirror, clone, copy",
        floor_percent: None,
        mutated: false,
        paths: &[
            "crates/target/src/snapshot/",
            "crates/target/src/mirror/",
            "crates/target/src/clone/",
            "crates/target/src/copy/",
        ],
    },
    Group { name: "target: small ones", floor_percent: None, mutated: false, paths: &["crates/target/src/"] },
    Group { name: "export", floor_percent: None, mutated: false, paths: &["crates/export/src/"] },
    Group { name: "forebay, the library", floor_percent: None, mutated: false, paths: &["crates/forebay/src/"] },
];

/// The group of a file, by its path from the root; none for files of tests and what is no part of the product.
pub fn of(path: &str) -> Option<&'static Group> {
    if is_test(path) {
        return None;
    }
    GROUPS.iter().find(|group| group.paths.iter().any(|own| path == *own || own.ends_with('/') && path.starts_with(own)))
}

/// Whether a file has tests and what only they use.
fn is_test(path: &str) -> bool {
    ["/tests/", "/tests.rs", "/testing.rs", "/properties.rs"].iter().any(|mark| path.contains(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_in_the_first_group_that_names_it_and_tests_are_in_none() {
        let name = |path| of(path).map(|group| group.name);
        assert_eq!(name("crates/target/src/cache/disk/entry.rs"), Some("formats: writecache and its side file"));
        assert_eq!(name("crates/target/src/cache/disk/side/judge.rs"), Some("formats: writecache and its side file"));
        assert_eq!(name("crates/target/src/cache/disk/recover.rs"), Some("recovery"));
        assert_eq!(name("crates/target/src/cache/write.rs"), Some("target: write cache"));
        assert_eq!(name("crates/target/src/linear.rs"), Some("target: small ones"));
        assert_eq!(name("crates/nbd/src/wire.rs"), Some("wire: NBD server and client"));
        assert_eq!(name("crates/nbd/src/server/reply/tests.rs"), None);
        assert_eq!(name("crates/target/src/below/testing.rs"), None);
        assert_eq!(name("crates/sim/src/main.rs"), None);
    }

    #[test]
    fn every_path_of_the_list_exists() {
        let root = crate::root();
        for path in GROUPS.iter().flat_map(|group| group.paths) {
            assert!(root.join(path).exists(), "{path} is listed in groups.rs, and is not there");
        }
    }
}
