//! The end of a turn: completions become ended bios and answered streams, or are tried again.
//!
//! ```text
//!   done ─▶ short or refused for now? ─▶ again, from where it stopped
//!        ─▶ merged and failed?        ─▶ its bios again, each alone
//!        ─▶ finished ─▶ Bio::end
//! ```

use std::io;
use std::sync::atomic::Ordering;

use forebay_block::replant::{Bug, planted};
use forebay_block::{Bio, Status};

use super::{Device, Reactor};
use crate::backend::Done;
use crate::plug::Entry;
use crate::request::{DeviceId, Kind, Requests};

/// How often a request that the kernel refused for now is tried again before its bio ends with
/// [`Status::Again`].
const RETRIES_MAX: u32 = 100;

impl Reactor {
    /// Turns completions into finished bios and answered streams.
    pub(super) fn reap(&self) {
        let mut done = self.0.done.borrow_mut();
        for one in done.drain(..) {
            let mut requests = self.0.requests.borrow_mut();
            if let Some(stream) = requests.get_mut(one.tag).stream.take() {
                requests.release(one.tag);
                if !stream.reply.abandoned.get() {
                    stream.reply.result.set(Some((one.result, stream.parts)));
                }
                if let Some(waker) = stream.reply.waker.take() {
                    waker.wake();
                }
                continue;
            }
            self.reap_block(&mut requests, one);
        }
    }

    fn reap_block(&self, requests: &mut Requests, one: Done) {
        let request = requests.get_mut(one.tag);
        let mut devices = self.0.devices.borrow_mut();
        let device = &mut devices[usize::from(request.device.0)];
        let moved = u64::try_from(one.result).unwrap_or(0) & !511;
        let payload = matches!(request.kind, Kind::Read | Kind::Write { .. });
        let complete = one.result >= 0 && (!payload || moved >= request.bytes || planted(Bug::M15ShortAsFull));
        if !complete {
            let temporary = matches!(one.result, r if r == -libc::EINTR || r == -libc::EAGAIN);
            let retry = (temporary && request.retries < RETRIES_MAX) || (moved > 0 && request.bios.len() == 1);
            if retry {
                request.retries += u32::from(moved == 0);
                request.skip += moved;
                request.offset += moved;
                request.bytes -= moved;
                self.0.batch.borrow_mut().push(one.tag);
                self.0.ready.store(true, Ordering::Release);
                return;
            }
        }
        device.in_flight -= 1;
        if complete {
            let mut finished = self.0.finished.borrow_mut();
            finished.extend(request.bios.drain(..).map(|bio| (bio, Status::Ok)));
        } else if request.bios.len() > 1 && !is_unreachable(one.result) {
            let mut plug = self.0.plug.borrow_mut();
            for bio in request.bios.drain(..) {
                plug.add(request.device, false, bio);
            }
            self.0.ready.store(true, Ordering::Release);
        } else {
            let status = status_of(one.result);
            for bio in request.bios.drain(..) {
                device.counts.errors += 1;
                log_failure(&device.attachment.name, &bio, one.result, status);
                self.0.finished.borrow_mut().push((bio, status));
            }
        }
        let device_id = request.device;
        requests.release(one.tag);
        if device.held > 0 && device.in_flight == 0 {
            self.release_held(&mut self.0.held.borrow_mut(), device, device_id);
        }
    }

    /// Puts the bios that waited for overlapping ones back into the plug.
    pub(super) fn release_held(&self, held: &mut Vec<Entry>, device: &mut Device, id: DeviceId) {
        let mut plug = self.0.plug.borrow_mut();
        let mut at = 0;
        while at < held.len() {
            if held[at].device() == id {
                let entry = held.remove(at);
                plug.add(id, device.attachment.merging, entry.bio);
            } else {
                at += 1;
            }
        }
        device.held = 0;
        self.0.ready.store(true, Ordering::Release);
    }

    /// Ends finished bios, outside of every borrow (I2).
    pub(super) fn deliver(&self) {
        let mut finished = std::mem::take(&mut *self.0.finished.borrow_mut());
        for (bio, status) in finished.drain(..) {
            bio.end(status);
        }
        let mut place = self.0.finished.borrow_mut();
        if place.is_empty() {
            *place = finished;
        }
        if self.0.plug.borrow().len() > 0 {
            self.0.ready.store(true, Ordering::Release);
        }
    }
}

/// Whether a request failed because nobody can be asked any more: its parts would fare no better.
fn is_unreachable(result: i32) -> bool {
    matches!(-result, libc::ESHUTDOWN | libc::ETIMEDOUT | libc::ENOTCONN)
}

/// What an errno means to whoever asked. A short result without progress is the end of the device.
fn status_of(result: i32) -> Status {
    match -result {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Status::NoSpace,
        libc::EROFS | libc::EPERM | libc::EBADF => Status::ReadOnly,
        libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY => Status::Unsupported,
        libc::EAGAIN | libc::EINTR => Status::Again,
        libc::ECANCELED => Status::Aborted,
        _ => Status::IoError,
    }
}

fn log_failure(device: &str, bio: &Bio, result: i32, status: Status) {
    let cause = if result >= 0 {
        "the device ended before the request did".to_owned()
    } else {
        io::Error::from_raw_os_error(-result).to_string()
    };
    let (op, extent) = (bio.op(), bio.extent());
    if status == Status::Unsupported {
        // Whoever asked has another way.
        tracing::debug!("{device}: {op:?} of sectors {extent} is not supported: {cause}");
    } else {
        tracing::warn!("{device}: {op:?} of sectors {extent} failed ({status:?}): {cause}");
    }
}
