//! Copies that the kernel makes, where that is asked for: blocks that two files share from now on, or
//! `copy_file_range`.
//!
//! Both are exact: the same bytes and the same size, or an error. Blocks that are shared cost nothing, but are one copy
//! on the disk, not two; and `copy_file_range` goes through the page cache and is slower than the engine on most
//! file systems.

use rustix::io::Errno;

use super::ends::{Destination, Source};
use crate::failure::Failure;

/// Most bytes that the kernel is asked to copy in one call.
const CALL_BYTES: usize = 1 << 30;

/// Lets the kernel copy `source` to `to`; `false` where it does not, and nothing that counts was done.
pub fn copy(source: &Source, to: &Destination, mut progress: impl FnMut(u64)) -> Result<bool, Failure> {
    let (Some(from), Some(file)) = (&source.file, &to.file) else { return Ok(false) };
    if !source.is_file() || !to.is_file() || source.bytes == 0 {
        return Ok(false);
    }
    let shorter = || Failure::Failed(format!("{} became shorter while it was copied", source.name));
    if to.made && rustix::fs::ioctl_ficlone(&**file, &**from).is_ok() {
        // It shares all that there was, which is not what was looked at where the size has changed.
        let failed = |error: std::io::Error| Failure::because(format!("looking at {}", source.name), &error);
        if from.metadata().map_err(failed)?.len() < source.bytes {
            return Err(shorter());
        }
        file.set_len(source.bytes).map_err(|error| Failure::because(format!("ending {}", to.name), &error))?;
        progress(source.bytes);
        return Ok(true);
    }
    let mut at = 0;
    while at < source.bytes {
        let most = usize::try_from(source.bytes - at).map_or(CALL_BYTES, |left| left.min(CALL_BYTES));
        let (mut read, mut written) = (at, at);
        match rustix::fs::copy_file_range(&**from, Some(&mut read), &**file, Some(&mut written), most) {
            Ok(0) => return Err(shorter()),
            Ok(bytes) => at += bytes as u64,
            Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::PERM | Errno::TXTBSY) => return Ok(false),
            Err(error) => return Err(Failure::because(format!("copying to {}", to.name), &error.into())),
        }
        progress(at);
    }
    Ok(true)
}
