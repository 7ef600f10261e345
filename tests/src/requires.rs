//! What a test needs from the system. Missing means failing, with the name of what is missing.

use std::path::Path;
use std::process::Command;

/// Panics unless every program is on the path (or in `/usr/sbin` or `/sbin`), naming all that are missing.
///
/// A name with a `/` is a file that must exist.
pub fn require(programs: &[&str]) {
    let missing: Vec<&str> = programs.iter().copied().filter(|name| !found(name)).collect();
    assert!(missing.is_empty(), "this test needs {}; run `cargo xtask test`, which installs or names it", missing.join(", "));
}

/// Panics unless this process is root, which loop devices and mounts need.
pub fn require_root() {
    let out = Command::new("id").arg("-u").output().expect("coreutils are installed");
    assert_eq!(out.stdout.trim_ascii(), b"0", "this test needs root, for loop devices and mounts");
}

fn found(name: &str) -> bool {
    if name.contains('/') {
        return Path::new(name).exists();
    }
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').chain(["/usr/sbin", "/sbin"]).any(|folder| Path::new(folder).join(name).is_file())
}
