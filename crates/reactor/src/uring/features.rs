//! What a kernel's `io_uring` can do beyond the least that is needed, and the ring built from it.
//!
//! Everything optional is probed, so that one binary runs on any kernel, and can be switched off by
//! a mask, so that each way of doing without is tested on a kernel that has it all.

use std::io;

use io_uring::{IoUring, Probe, opcode};

/// A set of optional abilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features(u8);

impl Features {
    /// Completions are worked off when the reactor enters, by the one thread that submits (6.1).
    pub const DEFER_TASKRUN: Self = Self(1);
    /// Completions do not interrupt the thread (5.19).
    pub const COOP_TASKRUN: Self = Self(2);
    /// Waiting takes a deadline, without a timer request (5.11).
    pub const EXT_ARG: Self = Self(4);
    /// Devices are registered: no reference is counted per request (5.19).
    pub const FILES: Self = Self(8);
    /// Payload memory is registered: no page is pinned per request (5.19).
    pub const BUFFERS: Self = Self(16);
    /// Requests of several segments use registered memory as well (6.15).
    pub const FIXED_VECTORS: Self = Self(32);
    /// The thread stays awake for a moment before it sleeps. Nothing that a kernel must have.
    pub const WATCH: Self = Self(64);
    /// All of them.
    pub const ALL: Self = Self(127);
    /// None of them.
    pub const NONE: Self = Self(0);

    /// Each of them with a name for people.
    pub const EACH: [(&str, Self); 7] = [
        ("deferred task work", Self::DEFER_TASKRUN),
        ("cooperative task work", Self::COOP_TASKRUN),
        ("wait with a deadline", Self::EXT_ARG),
        ("registered files", Self::FILES),
        ("registered memory", Self::BUFFERS),
        ("registered memory in vectors", Self::FIXED_VECTORS),
        ("staying awake for a moment", Self::WATCH),
    ];

    /// Whether all of `other` are in this set.
    #[must_use]
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// This set without those of `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// Requests and completions that fit their rings at once.
///
/// The plug lets go at 256 bios, so a turn's batch rarely needs a second call; more are queued and
/// follow in order. The completions are enough for deep queues, so that the kernel's own, slower
/// list of what did not fit stays empty. Kernels from 6.14 on count rings as locked memory: where
/// little of it is allowed, the second, small pair takes 12 KiB.
const SIZES: [(u32, u32); 2] = [(256, 4096), (64, 256)];
/// Devices in the kernel's table; those beyond go by their descriptor.
pub(super) const FILES_MAX: u32 = 256;
/// Memory regions in the kernel's table; those beyond go unregistered.
pub(super) const REGIONS_MAX: u16 = 512;

/// Makes a ring with as many of the `wanted` abilities as the kernel has.
pub(super) fn build(wanted: Features) -> io::Result<(IoUring, Features)> {
    let (ring, mut features) = ring(wanted)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|_| too_old())?;
    let needed = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::ReadFixed::CODE,
        opcode::WriteFixed::CODE,
        opcode::Readv::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
        opcode::Recv::CODE,
        opcode::RecvMsg::CODE,
        opcode::Send::CODE,
        opcode::SendMsg::CODE,
        opcode::PollAdd::CODE,
        opcode::Timeout::CODE,
        opcode::AsyncCancel::CODE,
    ];
    if !ring.params().is_feature_nodrop() || needed.iter().any(|&code| !probe.is_supported(code)) {
        return Err(too_old());
    }
    let vectors = probe.is_supported(opcode::ReadvFixed::CODE) && probe.is_supported(opcode::WritevFixed::CODE);
    if !vectors {
        features = features.without(Features::FIXED_VECTORS);
    }
    if !ring.params().is_feature_ext_arg() {
        features = features.without(Features::EXT_ARG);
    }
    if features.has(Features::FILES) && ring.submitter().register_files_sparse(FILES_MAX).is_err() {
        features = features.without(Features::FILES);
    }
    if features.has(Features::BUFFERS) && ring.submitter().register_buffers_sparse(u32::from(REGIONS_MAX)).is_err() {
        features = features.without(Features::BUFFERS);
    }
    if !features.has(Features::BUFFERS) {
        features = features.without(Features::FIXED_VECTORS);
    }
    Ok((ring, features))
}

/// The ring with the best way of completing that the kernel takes, of the largest size.
fn ring(wanted: Features) -> io::Result<(IoUring, Features)> {
    let [large, small] = SIZES;
    match sized_ring(wanted, large) {
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => sized_ring(wanted, small),
        result => result,
    }
    .map_err(|error| refused(&error))
}

fn sized_ring(wanted: Features, (submissions, completions): (u32, u32)) -> io::Result<(IoUring, Features)> {
    let mut features = wanted;
    let builder = || {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(completions).setup_clamp();
        builder
    };
    if features.has(Features::DEFER_TASKRUN) {
        match builder().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().build(submissions) {
            Ok(ring) => return Ok((ring, features)),
            Err(_) => features = features.without(Features::DEFER_TASKRUN),
        }
    }
    if features.has(Features::COOP_TASKRUN) {
        match builder().setup_coop_taskrun().setup_taskrun_flag().build(submissions) {
            Ok(ring) => return Ok((ring, features)),
            Err(_) => features = features.without(Features::COOP_TASKRUN),
        }
    }
    Ok((builder().build(submissions)?, features))
}

fn too_old() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "this kernel's io_uring is too old (Linux 5.6 is needed): use the threads engine")
}

fn refused(error: &io::Error) -> io::Error {
    let why = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "io_uring is forbidden here (sysctl kernel.io_uring_disabled, or a container's seccomp filter)"
        }
        Some(libc::ENOSYS) => "this kernel has no io_uring, or a seccomp filter hides it",
        Some(libc::ENOMEM) => "there is no memory for io_uring: raise the limit of locked memory (ulimit -l)",
        _ => "io_uring cannot be set up",
    };
    io::Error::new(error.kind(), format!("{why}: {error}"))
}
