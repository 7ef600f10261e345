//! Side files in a folder of their own, and names of files and block devices.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

/// A folder that goes when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("forebay-side-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.file(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_side_file_is_made_replaced_read_and_removed() {
    let folder = Folder::new("life");
    let path = SideFile::beside(&folder.file("cache.img"));
    assert_eq!(path, folder.file("cache.img.side"));
    let file = SideFile::new(&path);
    assert_eq!(file.read().unwrap(), None);
    file.remove().unwrap();
    file.replace(b"one").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    folder.write("cache.img.side.new", "left by a crash");
    file.replace(b"two").unwrap();
    assert_eq!(file.read().unwrap().unwrap(), b"two");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "nothing else is left behind");
    file.remove().unwrap();
    assert_eq!(file.read().unwrap(), None);
}

#[test]
fn a_link_stays_a_link_and_what_is_no_file_is_refused() {
    let folder = Folder::new("link");
    folder.write("there/real", "old");
    symlink(folder.file("there/real"), folder.file("link")).unwrap();
    let file = SideFile::new(&folder.file("link"));
    file.replace(b"new").unwrap();
    assert!(fs::symlink_metadata(folder.file("link")).unwrap().is_symlink());
    assert_eq!(fs::read(folder.file("there/real")).unwrap(), b"new");
    assert!(SideFile::new(&folder.file("there")).read().is_err());
    assert!(SideFile::new(Path::new("/dev/null")).read().is_err());
    assert!(SideFile::new(&folder.file("nowhere/a.side")).replace(b"x").is_err());
}

#[test]
fn a_file_that_is_far_too_long_is_not_read_whole() {
    let folder = Folder::new("long");
    let path = folder.write("long", "");
    File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(SideFile::new(&path).read().unwrap().unwrap().len(), SIDE_BYTES_MAX + 1);
}

#[test]
fn a_renamed_file_is_known_and_a_copy_is_another() {
    let folder = Folder::new("names");
    let path = folder.write("a", "content");
    let name = known_as(&path);
    assert!(name.to_string().starts_with("inode "), "{name}");
    fs::copy(&path, folder.file("b")).unwrap();
    assert_ne!(known_as(&folder.file("b")), name);
    fs::rename(&path, folder.file("c")).unwrap();
    assert_eq!(known_as(&folder.file("c")), name);
    assert_eq!(known_as(&folder.file("nowhere")), Name::default());
}

#[test]
fn a_block_device_is_known_by_what_the_system_tells_of_it() {
    let folder = Folder::new("sysfs");
    folder.write("list/8:0/device/wwid", "naa.5000c500 \n");
    folder.write("devices/nvme0n1/wwid", "eui.0025\n");
    folder.write("devices/nvme0n1/nvme0n1p2/partition", "2\n");
    symlink(folder.file("devices/nvme0n1/nvme0n1p2"), folder.file("list/259:2")).unwrap();
    folder.write("list/253:1/dm/uuid", "LVM-abc\n");
    folder.write("list/252:0/serial", "\n");
    folder.write("list/7:0/loop/backing_file", "/data/a.img\n");
    let name = |major, minor| block_device(&folder.file("list"), rustix::fs::makedev(major, minor)).to_string();
    assert_eq!(name(8, 0), "wwid naa.5000c500");
    assert_eq!(name(259, 2), "partition 2 of wwid eui.0025");
    assert_eq!(name(253, 1), "dm LVM-abc");
    assert_eq!(name(252, 0), "block device 252:0");
    assert_eq!(name(7, 0), "loop over /data/a.img");
}
