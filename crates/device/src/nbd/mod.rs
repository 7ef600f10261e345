//! A server of the NBD protocol as a device.
//!
//! ```text
//!   submit ─▶ Reactor::submit (split, plug, merge) ─▶ Remote::carry ─▶ Link: queue ─▶ send ─▶ server
//!                                                        ▲              ▲               │
//!                                       Bio::end ◀── reap┘     keeper ──┘   receive ◀───┘
//! ```
//!
//! Invariants:
//! - I1: a request that the server did not acknowledge is never told as done; one that it did is told once.
//! - I2: what is done when the server goes away and comes back is in [`keeper`] and [`remote`].
//! - I3: nothing that a server sends makes the client panic, write outside of a request's memory, or wait
//!   longer than [`NbdOptions::reply`] for one reply.
//!
//! The protocol itself is in `forebay_nbd::client`. Errors of bios: [`Status::IoError`] outside the device
//! and when the server failed, is away, or did not answer; [`Status::ReadOnly`], [`Status::NoSpace`] and
//! [`Status::Unsupported`] as the server said.

mod dial;
mod error;
mod flushes;
mod keeper;
mod link;
mod remote;
mod status;
mod work;

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{
    Ability, Allocation, Bio, Extent, Limits, LookUp, Op, SECTOR_BYTES, SectorCount, Status as BioStatus, Target,
};
use forebay_nbd::TransmissionFlags;
use forebay_nbd::client::Entered;
use forebay_nbd::uri::Uri;
use forebay_reactor::{Attachment, BufferPool, Carrier, DeviceId, Reactor};

pub use self::error::NbdError;
use self::flushes::Flushes;
use self::remote::Remote;
use self::status::Status;

/// Longest read or write that is sent in one request, bytes: longer ones are spread over the connections.
const REQUEST_BYTES_MAX: u32 = 4 << 20;
/// Longest trim or write-zeroes, bytes.
const BARE_BYTES_MAX: u64 = 1 << 30;
/// Largest unit that counts as what the server writes without reading first, bytes.
const PHYSICAL_BYTES_MAX: u32 = 64 << 10;

/// How to use a server.
#[derive(Clone, Debug)]
pub struct NbdOptions {
    /// Take no changes.
    pub read_only: bool,
    /// Connections at most, where the server allows several.
    pub connections: usize,
    /// How long one attempt to reach the server may take, its negotiation included.
    pub dial: Duration,
    /// How long the server may take for a reply.
    pub reply: Duration,
    /// How long requests wait for a server that is away before they fail.
    pub away: Duration,
}

impl Default for NbdOptions {
    fn default() -> Self {
        let [dial, reply, away] = [10, 60, 30].map(Duration::from_secs);
        Self { read_only: false, connections: 4, dial, reply, away }
    }
}

/// A server as a device, for one user: who flushes it is told what may have been lost since his last flush.
pub struct NbdDevice {
    served: Rc<Served>,
    flushes: Rc<Flushes>,
}

/// What all users of a server share.
struct Served {
    reactor: Reactor,
    remote: Rc<Remote>,
    id: DeviceId,
    limits: Limits,
    sectors: SectorCount,
    /// Bytes of the export behind its last whole block.
    left_bytes: u64,
    read_only: bool,
    /// Who is asked for holes; `None` where the server does not tell.
    holes: Option<Rc<dyn LookUp>>,
}

impl NbdDevice {
    /// Connects to `uri` and attaches the server to the reactor.
    ///
    /// # Errors
    /// [`NbdError`], one sentence, after [`NbdOptions::dial`] at the latest.
    pub async fn connect(reactor: &Reactor, pool: &BufferPool, uri: &Uri, options: NbdOptions) -> Result<Rc<Self>, NbdError> {
        let dialled = Box::pin(dial::dial(reactor, pool, &dial::resolver(), uri, options.dial)).await?;
        let offer = dialled.entered;
        let limits = limits(&offer);
        let read_only = options.read_only;
        if offer.flags.contains(TransmissionFlags::READ_ONLY) && !read_only {
            return Err(NbdError::ReadOnly { uri: uri.clone() });
        }
        let whole = offer.size_bytes - offer.size_bytes % u64::from(limits.logical_bytes);
        if whole == 0 {
            let (bytes, block_bytes) = (offer.size_bytes, limits.logical_bytes);
            return Err(NbdError::TooSmall { uri: uri.clone(), bytes, block_bytes });
        }
        if limits.flush == Ability::No && !read_only {
            tracing::warn!("{uri} has no flush: what it acknowledges counts as durable");
        }
        let remote = Remote::new(reactor, pool, uri, options, offer);
        let name = uri.to_string();
        let attachment = Attachment { name, limits, file: None, inline: None, merging: true };
        let system = |source| NbdError::System { uri: uri.clone(), source };
        let id = reactor.attach_carried(attachment, Rc::clone(&remote) as Rc<dyn Carrier>).map_err(system)?;
        if !reactor.spawn(keeper::keep(Rc::clone(&remote), dialled)) {
            return Err(system(std::io::Error::other("there are too many tasks on this thread")));
        }
        let holes = offer.allocation.map(|_| Rc::new(Status::new(&remote)) as Rc<dyn LookUp>);
        let sectors = SectorCount(whole / u64::from(SECTOR_BYTES));
        let left_bytes = offer.size_bytes - whole;
        let flushes = Flushes::new(&remote);
        let served = Served { reactor: reactor.clone(), remote, id, limits, sectors, left_bytes, read_only, holes };
        Ok(Rc::new(Self { served: Rc::new(served), flushes }))
    }

    /// The same device for another user. What a server that goes away may have lost is told to each user, by
    /// his next flush.
    #[must_use]
    pub fn share(&self) -> Rc<Self> {
        Rc::new(Self { served: Rc::clone(&self.served), flushes: Flushes::new(&self.served.remote) })
    }

    /// Under which number the reactor knows it, for its counts.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.served.id
    }

    /// Where the server is, and which of its exports this is.
    #[must_use]
    pub fn uri(&self) -> &Uri {
        &self.served.remote.uri
    }

    /// Bytes of the export behind its last whole block, which this device does not reach.
    #[must_use]
    pub fn left_bytes(&self) -> u64 {
        self.served.left_bytes
    }

    /// Connections there are now; none while the server is away.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.served.remote.links.borrow().len()
    }
}

impl Served {
    /// Why `bio` is not for this device.
    fn refuse(&self, bio: &Bio) -> Option<BioStatus> {
        match bio.op() {
            Op::Read | Op::Flush => {}
            _ if self.read_only => return Some(BioStatus::ReadOnly),
            Op::Discard if self.limits.discard == Ability::No => return Some(BioStatus::Unsupported),
            Op::Write | Op::Discard | Op::WriteZeroes => {}
        }
        (!crate::inside(self.sectors, bio)).then_some(BioStatus::IoError)
    }

    /// Longest part of `bio` that goes into one request, where the reactor does not cut it.
    fn longest(&self, bio: &Bio) -> u64 {
        match bio.op() {
            Op::WriteZeroes if !self.remote.offers(TransmissionFlags::SEND_WRITE_ZEROES) => {
                u64::from(self.limits.max_sectors) * u64::from(SECTOR_BYTES)
            }
            Op::Discard | Op::WriteZeroes => BARE_BYTES_MAX,
            Op::Read | Op::Write | Op::Flush => u64::MAX,
        }
    }

    /// Sends `bio`, in parts where it is long.
    fn submit(&self, mut bio: Bio) {
        let longest = self.longest(&bio);
        if bio.bytes() <= longest {
            return self.reactor.submit(self.id, bio);
        }
        while bio.bytes() > longest {
            self.reactor.submit(self.id, bio.split_front(longest));
        }
        let rest = bio.part(0, bio.bytes());
        self.reactor.submit(self.id, rest);
        bio.end_after_parts();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.remote.close();
    }
}

impl Target for NbdDevice {
    fn kind(&self) -> &'static str {
        "nbd"
    }

    fn limits(&self) -> Limits {
        self.served.limits
    }

    fn sectors(&self) -> SectorCount {
        self.served.sectors
    }

    fn submit(&self, bio: Bio) {
        match self.served.refuse(&bio) {
            Some(status) => bio.end(status),
            None if bio.op() == Op::Flush => self.flushes.submit(bio, |part| self.served.submit(part)),
            None => self.served.submit(bio),
        }
    }

    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        match &self.served.holes {
            Some(holes) => out.ask(holes, extent),
            None => out.data(extent.count),
        }
    }
}

/// What a server with this offer accepts and can do.
fn limits(offer: &Entered) -> Limits {
    let offers = |flag| offer.flags.contains(flag);
    let native = |flag| if offers(flag) { Ability::Native } else { Ability::No };
    let logical_bytes = offer.minimum_bytes.max(SECTOR_BYTES);
    let physical_bytes = offer.preferred_bytes.clamp(logical_bytes, PHYSICAL_BYTES_MAX);
    let most = offer.maximum_bytes.min(REQUEST_BYTES_MAX).max(logical_bytes);
    let flush = native(TransmissionFlags::SEND_FLUSH);
    Limits {
        logical_bytes,
        physical_bytes,
        preferred_bytes: offer.preferred_bytes,
        max_sectors: (most - most % logical_bytes) / SECTOR_BYTES,
        discard_grain_bytes: if offers(TransmissionFlags::SEND_TRIM) { logical_bytes } else { 0 },
        flush,
        fua: if offers(TransmissionFlags::SEND_FUA) { Ability::Native } else { flush.min(Ability::Emulate) },
        discard: native(TransmissionFlags::SEND_TRIM),
        write_zeroes: if offers(TransmissionFlags::SEND_WRITE_ZEROES | TransmissionFlags::SEND_FAST_ZERO) {
            Ability::Native
        } else {
            Ability::Emulate
        },
        ..Limits::unlimited()
    }
}
