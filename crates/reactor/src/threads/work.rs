//! What a worker thread does: one blocking call per request, with the results that a ring gives.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::request::{Kind, Tag};

/// Whether the system takes per-request flags; learnt from the first refusal. Some sandboxes and
/// old kernels do not.
static WRITE_FLAGS: AtomicBool = AtomicBool::new(true);

/// A block request on its way to a worker and back.
pub(super) struct Work {
    pub(super) tag: Tag,
    pub(super) kind: Kind,
    pub(super) file: Arc<OwnedFd>,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) vectors: Vec<libc::iovec>,
    pub(super) result: i32,
}

// SAFETY: the only pointers are those of `vectors`, into payload memory that belongs to the request
// of `tag`. It stays allocated until the request is reported done, which happens after the worker
// gave the work back, and nobody looks at it meanwhile.
unsafe impl Send for Work {}

impl Work {
    /// Carries the request out.
    pub(super) fn execute(&mut self) {
        self.result = match self.kind {
            Kind::Read => self.read(),
            Kind::Write { fua } => self.write(fua),
            Kind::Flush => self.sync(),
            Kind::Discard | Kind::WriteZeroes { no_unmap: false } => {
                self.allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
            }
            Kind::WriteZeroes { no_unmap: true } => self.allocate(libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE),
            Kind::Receive | Kind::Send | Kind::Readable => unreachable!("stream steps stay with the reactor's thread"),
        };
    }

    fn position(&self) -> (libc::c_int, libc::off64_t) {
        let count = libc::c_int::try_from(self.vectors.len()).expect("at most IOV_MAX");
        (count, i64::try_from(self.offset).expect("devices are shorter than 2^63 bytes"))
    }

    fn read(&self) -> i32 {
        let (count, offset) = self.position();
        // SAFETY: the vectors describe payload memory that is alive and unused by others, see above.
        outcome(unsafe { libc::preadv64(self.file.as_raw_fd(), self.vectors.as_ptr(), count, offset) })
    }

    fn write(&self, fua: bool) -> i32 {
        if fua && WRITE_FLAGS.load(Ordering::Relaxed) {
            let result = self.write_with(libc::RWF_DSYNC);
            if result != -libc::EOPNOTSUPP && result != -libc::ENOSYS {
                return result;
            }
            WRITE_FLAGS.store(false, Ordering::Relaxed);
        }
        let result = self.write_with(0);
        if fua && result > 0 {
            let synced = self.sync();
            return if synced < 0 { synced } else { result };
        }
        result
    }

    fn write_with(&self, flags: libc::c_int) -> i32 {
        let (count, offset) = self.position();
        let (fd, vectors) = (self.file.as_raw_fd(), self.vectors.as_ptr());
        if flags == 0 {
            // SAFETY: as in `read`.
            return outcome(unsafe { libc::pwritev64(fd, vectors, count, offset) });
        }
        // SAFETY: as in `read`.
        outcome(unsafe { libc::pwritev2(fd, vectors, count, offset, flags) })
    }

    fn sync(&self) -> i32 {
        number(rustix::fs::fdatasync(&self.file))
    }

    fn allocate(&self, mode: libc::c_int) -> i32 {
        let flags = rustix::fs::FallocateFlags::from_bits_retain(mode.cast_unsigned());
        number(rustix::fs::fallocate(&self.file, flags, self.offset, self.bytes))
    }
}

/// The result of a call that returns a byte count, as a ring reports it.
pub(super) fn outcome(result: isize) -> i32 {
    if result < 0 {
        return -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    }
    i32::try_from(result).expect("the kernel moves less than 2 GiB at once")
}

/// The result of a call that returns nothing.
fn number(result: rustix::io::Result<()>) -> i32 {
    result.map_or_else(|error| -error.raw_os_error(), |()| 0)
}
