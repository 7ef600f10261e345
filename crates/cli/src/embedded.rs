//! What `forebay serve` serves when nothing is said: a cached disk in the current folder.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use crate::failure::Failure;

/// The folder of the embedded default.
const FOLDER: &str = "forebay-data";
const ORIGIN: &str = "forebay-data/origin.img";
const CACHE: &str = "forebay-data/cache.img";
const ORIGIN_BYTES: u64 = 1 << 30;
const CACHE_BYTES: u64 = 256 << 20;

/// Its NBD socket.
pub const SOCKET: &str = "forebay-data/nbd.sock";
/// Its control socket, and where every command looks for one.
pub const CONTROL: &str = "forebay-data/control.sock";
/// Its name, and that of any device without another.
pub const NAME: &str = "disk";
/// Its table: 4096-byte cache blocks, and a side file where the commands for a cache look for it.
pub const TABLE: &str =
    "0 2097152 writecache s forebay-data/origin.img forebay-data/cache.img 4096 2 side forebay-data/cache.img.side";

/// Makes the folder and the two files in it where they are missing.
///
/// # Errors
/// When the system refuses.
pub fn make() -> Result<(), Failure> {
    let folder = DirBuilder::new().mode(0o700).create(FOLDER);
    existing(folder).map_err(|error| Failure::because(format!("making the folder {FOLDER}"), &error))?;
    for (path, bytes) in [(ORIGIN, ORIGIN_BYTES), (CACHE, CACHE_BYTES)] {
        make_sparse(Path::new(path), bytes).map_err(|error| Failure::because(format!("making {path}"), &error))?;
    }
    Ok(())
}

/// Makes a file of `bytes` that takes no space yet, unless something is there.
fn make_sparse(path: &Path, bytes: u64) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => file.set_len(bytes),
        Err(error) => existing(Err(error)),
    }
}

/// What exists already is as good as made.
fn existing(made: io::Result<()>) -> io::Result<()> {
    match made {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}
