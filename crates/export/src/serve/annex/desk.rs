//! The home end of an annex: carries out its errands on the targets, and keeps its clients' places.
//!
//! ```text
//!   Errand ─▶ a change? ── yes ─▶ gate ─▶ bio on the lent payload ─▶ target ─▶ bio ended ─▶ Answer
//!                └─ no ───────────────────▶┘
//! ```

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use forebay_block::allocation::runs;
use forebay_block::{Bio, End, Extent, Loan, Op, Segments, SharedMemory};
use forebay_reactor::mailbox::{Mailbox, Post};

use super::super::Shared;
use super::super::connection::Served;
use super::super::unaligned::Guarded;
use super::{Annex, Errand, ToAnnex, ToHome, Want};

/// An errand that is being carried out.
struct Begun {
    served: Rc<Served>,
    /// It counts as a change in the gate.
    gated: bool,
    /// Its bio, while the gate keeps it waiting.
    bio: Option<Bio>,
}

/// Where an annex hands in its errands.
pub(super) struct Desk {
    shared: Rc<Shared>,
    post: Post<ToAnnex>,
    /// The annex's memory, an array over the whole of each piece.
    memory: RefCell<Vec<Rc<Segments>>>,
    /// Errands under way, by tag.
    begun: RefCell<Vec<Option<Begun>>>,
}

impl Desk {
    pub(super) fn new(shared: &Rc<Shared>, post: Post<ToAnnex>) -> Rc<Self> {
        Rc::new(Self { shared: Rc::clone(shared), post, memory: RefCell::default(), begun: RefCell::default() })
    }

    /// Works until the annex has ended.
    pub(super) async fn run(self: Rc<Self>, mut letters: Mailbox<ToHome>, annex: Rc<Annex>) {
        while let Some(letter) = letters.receive().await {
            match letter {
                ToHome::Errand(errand) => self.begin(errand),
                ToHome::Left { client } => {
                    annex.clients.set(annex.clients.get() - 1);
                    let guest = self.shared.away.borrow_mut().remove(&client);
                    drop(guest);
                }
            }
        }
        // Nobody is sent to one that broke.
        self.shared.annexes.borrow_mut().retain(|other| !Rc::ptr_eq(other, &annex));
    }

    fn begin(self: &Rc<Self>, errand: Errand) {
        let served = Rc::clone(&self.shared.served.borrow()[errand.export]);
        match errand.want {
            Want::Allocation { extent, most } => self.look_up(&served, errand.tag, extent, most),
            Want::Bio { op, flags, extent, loan } => {
                let bio =
                    self.bio(op, extent, loan.as_ref()).with(flags).on_end(Rc::clone(self) as Rc<dyn End>, u64::from(errand.tag));
                let gated = matches!(op, Op::Write | Op::Discard | Op::WriteZeroes);
                self.keep(errand.tag, Begun { served: Rc::clone(&served), gated, bio: Some(bio) });
                if !gated || served.gate.enter(Rc::clone(self) as Rc<dyn Guarded>, errand.tag, false) {
                    self.admitted(errand.tag, false);
                }
            }
        }
    }

    fn keep(&self, tag: u32, errand: Begun) {
        let mut begun = self.begun.borrow_mut();
        let at = tag as usize;
        if at >= begun.len() {
            begun.resize_with(at + 1, || None);
        }
        assert!(begun[at].is_none(), "a tag is used again only after its answer");
        begun[at] = Some(errand);
    }

    fn bio(&self, op: Op, extent: Extent, loan: Option<&Loan>) -> Bio {
        let payload = |loan: Option<&Loan>| {
            let loan = loan.expect("an errand with payload brings it");
            (self.array(&loan.memory), loan.skip, loan.bytes)
        };
        match op {
            Op::Read => {
                let (segments, skip, bytes) = payload(loan);
                Bio::read(extent.start, segments, skip, bytes)
            }
            Op::Write => {
                let (segments, skip, bytes) = payload(loan);
                Bio::write(extent.start, segments, skip, bytes)
            }
            Op::Flush => Bio::flush(),
            Op::Discard => Bio::discard(extent),
            Op::WriteZeroes => Bio::write_zeroes(extent),
        }
    }

    /// The array over `memory`, which is also offered to the home thread's backend when it is seen
    /// for the first time.
    fn array(&self, memory: &SharedMemory) -> Rc<Segments> {
        let mut known = self.memory.borrow_mut();
        let base = memory.base().as_ptr();
        if let Some(array) = known.iter().find(|array| array.vecs()[0].base() == base) {
            return Rc::clone(array);
        }
        self.shared.reactor.offer_memory(memory);
        let array = Segments::borrowed(Arc::clone(memory)).expect("pools map far less than 4 GiB in a piece");
        known.push(Rc::clone(&array));
        array
    }

    fn look_up(self: &Rc<Self>, served: &Rc<Served>, tag: u32, extent: Extent, most: usize) {
        let found = runs(&*served.target, extent, most);
        let post = self.post.clone();
        let started = self.shared.reactor.spawn(async move {
            drop(post.post(ToAnnex::Allocation { tag, runs: found.await }));
        });
        if !started {
            // Nothing is known, so everything counts as data.
            drop(self.post.post(ToAnnex::Allocation { tag, runs: Vec::new() }));
        }
    }
}

impl Guarded for Desk {
    fn admitted(&self, id: u32, alone: bool) {
        assert!(!alone, "what comes from an annex is whole blocks");
        let (target, bio) = {
            let mut begun = self.begun.borrow_mut();
            let errand = begun[id as usize].as_mut().expect("who was let in is under way");
            (Rc::clone(&errand.served.target), errand.bio.take().expect("it is let in once"))
        };
        target.submit(bio);
    }
}

impl End for Desk {
    fn bio_ended(&self, bio: Bio, token: u64) {
        let tag = u32::try_from(token).expect("tokens are tags");
        let status = bio.status();
        drop(bio);
        let errand = self.begun.borrow_mut()[tag as usize].take().expect("a bio ends once");
        // An annex that was told to end wants no answer.
        drop(self.post.post(ToAnnex::Answer { tag, status }));
        if errand.gated {
            errand.served.gate.leave();
        }
    }
}
