//! A disk that keeps only its first bytes, in which the metadata lie: for caches larger than memory.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_block::{Bio, Limits, Op, SectorCount, Status, Target};
use forebay_reactor::{Attachment, DeviceId, Inline, Reactor};

pub struct Front {
    reactor: Reactor,
    id: DeviceId,
    sectors: SectorCount,
}

struct Kept(RefCell<Vec<u8>>);

impl Inline for Kept {
    fn execute(&self, bio: &Bio) -> Status {
        let mut bytes = self.0.borrow_mut();
        let start = usize::try_from(bio.sector().to_bytes()).unwrap();
        let end = start + usize::try_from(bio.bytes()).unwrap();
        match (bio.op(), bytes.get_mut(start..end)) {
            (Op::Read, Some(kept)) => drop(bio.copy_in(kept)),
            (Op::Write, Some(kept)) => drop(bio.copy_out(kept)),
            (Op::Read, None) => bio.zero(),
            _ => {}
        }
        Status::Ok
    }
}

impl Front {
    /// A disk of `bytes` whose first ones are `kept`; the others read as zeroes.
    pub fn new(reactor: &Reactor, bytes: usize, kept: Vec<u8>) -> Rc<Self> {
        let inline: Rc<dyn Inline> = Rc::new(Kept(RefCell::new(kept)));
        let limits = Limits::unlimited();
        let attachment = Attachment { name: "front".into(), limits, file: None, inline: Some(inline), merging: true };
        let id = reactor.attach(attachment).unwrap();
        Rc::new(Self { reactor: reactor.clone(), id, sectors: SectorCount(bytes as u64 / 512) })
    }
}

impl Target for Front {
    fn kind(&self) -> &'static str {
        "front"
    }
    fn limits(&self) -> Limits {
        Limits::unlimited()
    }
    fn sectors(&self) -> SectorCount {
        self.sectors
    }
    fn submit(&self, bio: Bio) {
        self.reactor.submit(self.id, bio);
    }
}
