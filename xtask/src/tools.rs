//! What the tests need from the system: programs, and the Debian packages that bring them.

use crate::step::Step;
use std::path::Path;
use std::process::Command;

/// Files that must exist, by absolute path or by program name, and the Debian package of each.
const NEEDED: [(&str, &str); 23] = [
    ("cc", "gcc"),
    ("fio", "fio"),
    ("nbdkit", "nbdkit"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdfuse", "libnbd-bin"),
    ("/usr/lib/python3/dist-packages/nbd.py", "python3-libnbd"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("qemu-storage-daemon", "qemu-system-common"),
    ("linux.uml", "user-mode-linux"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("fusermount3", "fuse3"),
    ("strace", "strace"),
    ("dmsetup", "dmsetup"),
    ("/bin/busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("modprobe", "kmod"),
    ("xz", "xz-utils"),
    ("sha256sum", "coreutils"),
    ("losetup", "mount"),
];

/// Makes sure that everything is there, installing Debian packages where this user may.
///
/// # Errors
/// Names the packages that are missing and cannot be installed from here.
pub fn provide() -> Result<(), String> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    if is_root() && find("apt-get") {
        let mut words = vec!["apt-get", "install", "-y", "-q", "--no-install-recommends"];
        words.extend(&missing);
        let install = || Step::new("install packages", 600, &words).env("DEBIAN_FRONTEND", "noninteractive").run();
        if !install() && Step::new("refresh package lists", 300, &["apt-get", "update", "-q"]).run() {
            install();
        }
    }
    let missing = self::missing();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("the tests need these Debian packages (or their like): {}; install them and run again", missing.join(" ")))
}

/// Packages of which something is missing, each once, in the table's order.
fn missing() -> Vec<&'static str> {
    let mut packages: Vec<&str> = NEEDED.iter().filter(|(file, _)| !find(file)).map(|(_, package)| *package).collect();
    packages.dedup();
    packages
}

fn find(file: &str) -> bool {
    if file.starts_with('/') {
        return Path::new(file).exists();
    }
    let path = std::env::var("PATH").unwrap_or_default();
    // Debian keeps file system tools where an ordinary user's PATH does not look.
    path.split(':').chain(["/usr/sbin", "/sbin"]).any(|folder| Path::new(folder).join(file).is_file())
}

/// Whether cargo has this command of others' making.
pub fn cargo_has(command: &str) -> bool {
    Command::new("cargo").args([command, "--version"]).output().is_ok_and(|out| out.status.success())
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|out| out.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_name_or_by_path_and_a_missing_one_is_not() {
        assert!(find("sh"));
        assert!(find("/bin/sh"));
        assert!(!find("no-such-program"));
        assert!(!find("/no/such/file"));
        assert!(!cargo_has("no-such-command"));
    }

    #[test]
    fn files_of_one_package_stand_together() {
        let mut packages: Vec<&str> = NEEDED.iter().map(|(_, package)| *package).collect();
        packages.dedup();
        let once: std::collections::BTreeSet<&str> = packages.iter().copied().collect();
        assert_eq!(once.len(), packages.len());
    }
}
