//! Requests as the kernel takes them: one submission entry each, and the arrays it points to.
//!
//! Invariants:
//! - I1: what an entry points to is payload memory, kept by the request, or lies in the [`Slot`] of
//!   its tag; a slot changes only while its tag is not in flight.
//! - I2: a slot keeps its capacity: once warm, nothing is allocated.

use std::os::fd::AsRawFd;

use io_uring::{opcode, squeue, types};

use super::Features;
use crate::request::{Kind, Request, Stream};

/// A device as the ring knows it.
#[derive(Clone, Copy)]
pub(super) struct Target {
    /// A descriptor, or an index into the kernel's table.
    pub(super) number: i32,
    pub(super) registered: bool,
}

/// Where a request's arrays live while the kernel works on it.
#[derive(Default)]
pub(super) struct Slot {
    vectors: Vec<libc::iovec>,
    message: Option<Box<libc::msghdr>>,
    /// In flight on a stream: may stay so for ever unless it is cancelled.
    pub(super) stream: bool,
}

/// Payload memory that the kernel has pinned.
#[derive(Default)]
pub(super) struct Regions(Vec<(usize, usize, u16)>);

impl Regions {
    /// Adds the region at `base`, registered under `index`.
    pub(super) fn add(&mut self, base: usize, bytes: usize, index: u16) {
        self.0.push((base, bytes, index));
        self.0.sort_unstable();
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Under which index the whole of `bytes` at `base` are registered.
    fn find(&self, base: usize, bytes: usize) -> Option<u16> {
        let after = self.0.partition_point(|&(start, ..)| start <= base);
        let &(start, length, index) = self.0.get(after.checked_sub(1)?)?;
        (base + bytes <= start + length).then_some(index)
    }
}

impl Slot {
    /// The entry for a block request on `target`.
    pub(super) fn block(&mut self, request: &Request, target: Target, regions: &Regions, features: Features) -> squeue::Entry {
        let fd = types::Fd(target.number);
        let entry = match request.kind {
            Kind::Read => {
                request.gather(&mut self.vectors);
                self.read(fd, request.offset, regions, features)
            }
            Kind::Write { fua } => {
                request.gather(&mut self.vectors);
                self.write(fd, request.offset, if fua { libc::RWF_DSYNC } else { 0 }, regions, features)
            }
            Kind::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            Kind::Discard | Kind::WriteZeroes { no_unmap: false } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(fd, request.bytes).offset(request.offset).mode(mode).build()
            }
            Kind::WriteZeroes { no_unmap: true } => {
                let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(fd, request.bytes).offset(request.offset).mode(mode).build()
            }
            Kind::Receive | Kind::Send | Kind::Readable => unreachable!("stream steps carry a stream"),
        };
        if target.registered { entry.flags(squeue::Flags::FIXED_FILE) } else { entry }
    }

    /// The entry for a step on a stream.
    pub(super) fn step(&mut self, request: &Request, stream: &Stream) -> squeue::Entry {
        let fd = types::Fd(stream.file.as_raw_fd());
        if request.kind == Kind::Readable {
            return opcode::PollAdd::new(fd, u32::try_from(libc::POLLIN).expect("a positive constant")).build();
        }
        request.gather(&mut self.vectors);
        let send = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        match (request.kind, self.vectors.as_slice()) {
            (Kind::Receive, &[one]) => opcode::Recv::new(fd, one.iov_base.cast(), length(one)).build(),
            (Kind::Receive, _) => opcode::RecvMsg::new(fd, self.message()).build(),
            (_, &[one]) => opcode::Send::new(fd, one.iov_base.cast(), length(one)).flags(send).build(),
            (_, _) => opcode::SendMsg::new(fd, self.message()).flags(send.cast_unsigned()).build(),
        }
    }

    /// The registered region that holds all segments, if one does.
    fn region(&self, regions: &Regions, features: Features) -> Option<u16> {
        let (first, rest) = self.vectors.split_first()?;
        if !rest.is_empty() && !features.has(Features::FIXED_VECTORS) {
            return None;
        }
        let index = regions.find(first.iov_base as usize, first.iov_len)?;
        rest.iter().all(|one| regions.find(one.iov_base as usize, one.iov_len) == Some(index)).then_some(index)
    }

    fn read(&self, fd: types::Fd, offset: u64, regions: &Regions, features: Features) -> squeue::Entry {
        match (self.vectors.as_slice(), self.region(regions, features)) {
            (&[one], Some(index)) => opcode::ReadFixed::new(fd, one.iov_base.cast(), length(one), index).offset(offset).build(),
            (&[one], None) => opcode::Read::new(fd, one.iov_base.cast(), length(one)).offset(offset).build(),
            (many, Some(index)) => opcode::ReadvFixed::new(fd, many.as_ptr(), count(many), index).offset(offset).build(),
            (many, None) => opcode::Readv::new(fd, many.as_ptr(), count(many)).offset(offset).build(),
        }
    }

    fn write(&self, fd: types::Fd, offset: u64, flags: i32, regions: &Regions, features: Features) -> squeue::Entry {
        match (self.vectors.as_slice(), self.region(regions, features)) {
            (&[one], Some(index)) => {
                let write = opcode::WriteFixed::new(fd, one.iov_base.cast(), length(one), index);
                write.offset(offset).rw_flags(flags).build()
            }
            (&[one], None) => opcode::Write::new(fd, one.iov_base.cast(), length(one)).offset(offset).rw_flags(flags).build(),
            (many, Some(index)) => {
                let write = opcode::WritevFixed::new(fd, many.as_ptr(), count(many), index);
                write.offset(offset).rw_flags(flags).build()
            }
            (many, None) => opcode::Writev::new(fd, many.as_ptr(), count(many)).offset(offset).rw_flags(flags).build(),
        }
    }

    /// A message over all segments.
    fn message(&mut self) -> *mut libc::msghdr {
        let message = self.message.get_or_insert_with(|| {
            // SAFETY: a message header is plain numbers and pointers, for which zero is a value: no
            // address, no control data.
            Box::new(unsafe { std::mem::zeroed() })
        });
        message.msg_iov = self.vectors.as_mut_ptr();
        message.msg_iovlen = self.vectors.len() as _;
        &raw mut **message
    }
}

fn length(one: libc::iovec) -> u32 {
    u32::try_from(one.iov_len).unwrap_or(u32::MAX)
}

fn count(many: &[libc::iovec]) -> u32 {
    u32::try_from(many.len()).expect("at most IOV_MAX")
}
