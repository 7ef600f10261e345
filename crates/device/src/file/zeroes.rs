//! Write-zeroes on a file: by a hole, by zeroing a range, or by writing zeroes, whichever the file
//! system takes.
//!
//! ```text
//!   may unmap ─▶ punch a hole ── refused ─▶ zero the range ── refused ─▶ write from one zero buffer
//!   may not ───────────────────────────────▶
//! ```
//!
//! What was refused once is not tried again.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use forebay_block::bio::call_with;
use forebay_block::{Bio, Flags, HeapMemory, Sector, Segments, Status};
use forebay_reactor::{DeviceId, Reactor, WeakReactor};

/// Size of the zero buffer, and so of the writes made from it, bytes.
const ZERO_BYTES: u32 = 1 << 20;

/// How zeroes get onto one device.
pub(super) struct Zeroes {
    reactor: WeakReactor,
    device: DeviceId,
    punches: Cell<bool>,
    ranges: Cell<bool>,
    buffer: OnceCell<Rc<Segments>>,
}

impl Zeroes {
    pub(super) fn new(reactor: &Reactor, device: DeviceId) -> Self {
        Self { reactor: reactor.downgrade(), device, punches: Cell::new(true), ranges: Cell::new(true), buffer: OnceCell::new() }
    }

    /// Does what `bio` asks, in the best way that is left.
    pub(super) async fn write(self: Rc<Self>, bio: Bio) {
        let mut status = Status::Unsupported;
        if !bio.flags().no_unmap && self.punches.get() {
            status = self.natively(&bio, false).await;
            self.punches.set(status != Status::Unsupported);
        }
        if status == Status::Unsupported && self.ranges.get() {
            status = self.natively(&bio, true).await;
            self.ranges.set(status != Status::Unsupported);
        }
        if status == Status::Unsupported {
            status = self.by_writing(&bio).await;
        }
        bio.end(status);
    }

    fn submit(&self, bio: Bio) {
        self.reactor.upgrade().expect("jobs are polled by their reactor").submit(self.device, bio);
    }

    async fn natively(&self, bio: &Bio, no_unmap: bool) -> Status {
        let part = bio.part(0, bio.bytes()).with(Flags { no_unmap, ..bio.flags() });
        self.submit(part);
        bio.parts_done().await
    }

    async fn by_writing(&self, bio: &Bio) -> Status {
        let zeroes = Rc::clone(self.buffer.get_or_init(|| {
            let memory = HeapMemory::new(ZERO_BYTES as usize, 4096);
            Segments::whole(Box::new(memory), ZERO_BYTES).expect("the buffer is not empty")
        }));
        let mut done = 0;
        while done < bio.bytes() {
            let bytes = u32::try_from(bio.bytes() - done).unwrap_or(ZERO_BYTES).min(ZERO_BYTES);
            let sector = Sector(bio.sector().0 + done / 512);
            let write = Bio::write(sector, Rc::clone(&zeroes), 0, bytes).with(bio.flags());
            let write = call_with(write, |write| self.submit(write)).await;
            if !write.status().is_ok() {
                return write.status();
            }
            done += u64::from(bytes);
        }
        Status::Ok
    }
}
