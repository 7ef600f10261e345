//! Copies that the kernel makes: blocks that two files share from now on, or `copy_file_range`.
//!
//! Both are exact: the same bytes and the same size, or an error. Sharing costs nothing and is tried
//! wherever a file goes to a new one on the same file system; `copy_file_range` goes through the page
//! cache and is slower than the engine on most file systems, so it is used where it is asked for.

use std::fs::File;
use std::path::Path;

use rustix::io::Errno;

use super::ends::{Destination, Source};
use crate::failure::Failure;

/// Most bytes that the kernel is asked to copy in one call.
const CALL_BYTES: usize = 1 << 30;

/// Lets the kernel copy `source` to `to`; `false` where it does not, and nothing that counts was done.
pub fn copy(source: &Source, to: &Destination, by_range: bool, mut progress: impl FnMut(u64)) -> Result<bool, Failure> {
    let (Some(from), Some(path)) = (&source.path, &to.path) else { return Ok(false) };
    let files = [source.seen, to.seen].iter().all(|seen| seen.is_some_and(|seen| !seen.block_device));
    if !files || source.bytes == 0 {
        return Ok(false);
    }
    let (from, file) = open(from, path).map_err(|error| Failure::because(format!("opening {}", to.name), &error))?;
    if to.made && rustix::fs::ioctl_ficlone(&file, &from).is_ok() {
        progress(source.bytes);
        return Ok(true);
    }
    if !by_range {
        return Ok(false);
    }
    let mut at = 0;
    while at < source.bytes {
        let most = usize::try_from(source.bytes - at).map_or(CALL_BYTES, |left| left.min(CALL_BYTES));
        let (mut read, mut written) = (at, at);
        match rustix::fs::copy_file_range(&from, Some(&mut read), &file, Some(&mut written), most) {
            Ok(0) => return Err(Failure::Failed(format!("{} became shorter while it was copied", source.name))),
            Ok(bytes) => at += bytes as u64,
            Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::PERM | Errno::TXTBSY) => return Ok(false),
            Err(error) => return Err(Failure::because(format!("copying to {}", to.name), &error.into())),
        }
        progress(at);
    }
    Ok(true)
}

fn open(from: &Path, to: &Path) -> std::io::Result<(File, File)> {
    Ok((File::open(from)?, File::options().write(true).open(to)?))
}
