//! The way into the plug: a bio is cut at its device's limits, and held there until the turn ends.
//!
//! Whether it must be cut is answered without a walk over its segments wherever the device's limits
//! allow that; only a bio that may have to be cut is walked.

use forebay_block::{Bio, Op, Status, split};

use super::{Device, Reactor};
use crate::request::DeviceId;

impl Reactor {
    /// Hands a bio to a device: split at its limits, then held in the plug. A bio whose memory the
    /// device cannot take ends with [`Status::IoError`].
    ///
    /// # Panics
    /// When the device is not known.
    pub fn submit(&self, id: DeviceId, mut bio: Bio) {
        let mut devices = self.0.devices.borrow_mut();
        let device = &mut devices[usize::from(id.0)];
        let limits = &device.attachment.limits;
        let payload = matches!(bio.op(), Op::Read | Op::Write);
        if payload && !bio.memory_aligned(limits.memory_align) {
            return self.0.finished.borrow_mut().push((bio, Status::IoError));
        }
        if !payload || split::surely_fits(limits, &bio) {
            return self.plug(device, id, bio);
        }
        let mut pieces = 0;
        while bio.bytes() > 0 {
            let limits = &device.attachment.limits;
            let bytes = split::prefix_bytes(limits, &bio);
            if bytes == bio.bytes() && pieces == 0 {
                return self.plug(device, id, bio);
            }
            if bytes == 0 {
                let part = bio.part(0, bio.bytes());
                self.0.finished.borrow_mut().push((part, Status::IoError));
                break;
            }
            let front = bio.split_front(bytes);
            self.plug(device, id, front);
            pieces += 1;
        }
        drop(devices);
        bio.end_after_parts();
    }

    fn plug(&self, device: &mut Device, id: DeviceId, bio: Bio) {
        device.counts.bios += 1;
        if matches!(bio.op(), Op::Read | Op::Write) {
            device.counts.bytes += bio.bytes();
        }
        let mut plug = self.0.plug.borrow_mut();
        plug.add(id, device.attachment.merging, bio);
        if device.held > 0 {
            // Behind a held bio everything waits, so that order is kept (plug I2).
            device.held += 1;
            let last = plug.take_last();
            self.0.held.borrow_mut().push(last);
        }
    }
}
