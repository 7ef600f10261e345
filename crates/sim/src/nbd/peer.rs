//! A client that speaks the protocol by itself: it comes, sends batches of requests, some of them wrong, and leaves,
//! at times in the middle of one; or is nobody's client and sends anything.
//!
//! 1. Every reply belongs to a request that has none yet, and fits it: the client's side of the protocol says so.
//! 2. What is answered is held against the model. What is not answered may have happened, now or later.
//! 3. A write of which the last byte was not sent never happens: no model knows of it.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use forebay_device::NbdDevice;
use forebay_nbd::TransmissionFlags;
use forebay_nbd::client::{Ask as Command, Ended, Entered, Session, Took, Violation};
use forebay_nbd::uri::Uri;
use forebay_reactor::{BufferPool, Reactor};
use rustix::net::SocketAddrUnix;

use super::device::use_device;
use super::swarm::Swarm;
use super::wire::Wire;
use crate::check::{Act, OpId, POISON, SECTOR, stamp};
use crate::run::{Ask, Client, Ledger};
use crate::world::World;

/// Longest request, sectors.
const LONGEST: usize = 128;
/// Pause of a client that was turned away.
const TURNED_AWAY: Duration = Duration::from_millis(300);
/// The server says that it leaves.
const ESHUTDOWN: u32 = 108;
/// Version in sectors that must never be found.
const TORN: u32 = u32::MAX;

/// What all clients of a seed share.
pub(crate) struct Town {
    pub(crate) world: World,
    pub(crate) reactor: Reactor,
    pub(crate) pool: BufferPool,
    pub(crate) ledger: Rc<Ledger>,
    pub(crate) swarm: Swarm,
    pub(crate) address: SocketAddrUnix,
    /// Requests whose clients left before their replies.
    pub(crate) unanswered: RefCell<Vec<OpId>>,
    /// Clients behind their handshake.
    pub(crate) inside: Cell<usize>,
    /// Our own client, while it is there, and what keeps its books.
    pub(crate) device: RefCell<Option<(Rc<NbdDevice>, Rc<Client>)>>,
}

impl Town {
    /// Nobody yet, for a server at `address`.
    pub(crate) fn new(world: &World, reactor: &Reactor, ledger: &Rc<Ledger>, swarm: Swarm, address: SocketAddrUnix) -> Self {
        Self {
            world: world.clone(),
            reactor: reactor.clone(),
            pool: BufferPool::default(),
            ledger: Rc::clone(ledger),
            swarm,
            address,
            unanswered: RefCell::default(),
            inside: Cell::default(),
            device: RefCell::default(),
        }
    }

    /// The same for somebody who does nothing wrong, when nothing goes wrong any more.
    pub(crate) fn healthy(town: &Self) -> Self {
        let healthy = Self::new(&town.world, &town.reactor, &town.ledger, town.swarm.healthy(), town.address.clone());
        Self { pool: town.pool.clone(), ..healthy }
    }

    /// What our own client has no answer to, and sends again to the next server.
    pub(crate) fn sent_again(&self) -> Vec<OpId> {
        self.device.borrow().as_ref().map_or(Vec::new(), |(_, client)| client.open())
    }

    /// Lets the peers come, and our own client where there is one; how many of them are there.
    pub(crate) fn open(town: &Rc<Self>, uri: &Uri, requests: u64) -> Rc<Cell<usize>> {
        let busy = Rc::new(Cell::new(town.swarm.peers + usize::from(town.swarm.device.is_some())));
        for number in 0..town.swarm.peers {
            let (peer, busy) = (Peer::new(town, number as u64), Rc::clone(&busy));
            let run = async move {
                Box::pin(peer.run(requests)).await;
                busy.set(busy.get() - 1);
            };
            assert!(town.reactor.spawn(run), "there is room for a few tasks");
        }
        if let Some(connections) = town.swarm.device {
            let (town, uri, left) = (Rc::clone(town), uri.clone(), Rc::clone(&busy));
            let reactor = town.reactor.clone();
            let run = async move {
                Box::pin(use_device(&town, &uri, connections, requests)).await;
                left.set(left.get() - 1);
            };
            assert!(reactor.spawn(run), "there is room for a few tasks");
        }
        busy
    }
}

/// A request that was sent.
struct Sent {
    op: Option<OpId>,
    command: Command,
    sectors: Range<usize>,
    /// The server has to refuse it.
    wrong: bool,
    payload: Vec<u8>,
}

/// One client.
pub(crate) struct Peer {
    town: Rc<Town>,
    rng: Rng,
    last: usize,
}

/// A visit in its transmission phase.
struct Visit<'a> {
    town: &'a Town,
    wire: Wire,
    session: Session,
    flags: TransmissionFlags,
    sent: Vec<Option<Sent>>,
    out: Vec<u8>,
}

impl Peer {
    pub(crate) fn new(town: &Rc<Town>, number: u64) -> Self {
        Self { town: Rc::clone(town), rng: Rng::with_seed(town.ledger.seed ^ (number + 1) << 40), last: 0 }
    }

    /// Comes again and again until so many requests were sent by all.
    pub(crate) async fn run(mut self, requests: u64) {
        let ledger = Rc::clone(&self.town.ledger);
        while !ledger.failed() && ledger.requests.get() < requests {
            let pause = Duration::from_micros(self.rng.u64(0..20_000));
            self.town.reactor.sleep(pause).await;
            let swarm = &self.town.swarm;
            let (noise, torn) = (swarm.noise_percent, swarm.torn_percent);
            if self.rng.u32(0..100) < noise {
                self.noise().await;
            } else {
                let batches = self.rng.u32(1..12);
                let half = self.rng.u32(0..100) < torn;
                Box::pin(self.visit(batches, half)).await;
            }
        }
    }

    /// Sends anything, whole greetings and single bytes, and takes whatever comes.
    async fn noise(&mut self) {
        let town = Rc::clone(&self.town);
        let Some(mut wire) = Wire::connect(&town.reactor, &town.pool, &town.address) else {
            return town.reactor.sleep(TURNED_AWAY).await;
        };
        let entered = self.rng.bool() && matches!(wire.enter().await, Ok(Some(_)));
        for _ in 0..self.rng.u32(0..4) {
            let mut bytes = vec![0; self.rng.usize(1..200)];
            self.rng.fill(&mut bytes);
            let magic: &[u8] = if entered { b"\x25\x60\x95\x13" } else { b"\0\0\0\x03IHAVEOPT" };
            if self.rng.bool() {
                let length = magic.len().min(bytes.len());
                bytes[..length].copy_from_slice(&magic[..length]);
            }
            if entered && bytes.len() > 7 {
                // Anything but a write or what else changes something.
                bytes[6..8].copy_from_slice(&[0, [0, 3, 5, 7, 9][self.rng.usize(0..5)]]);
            }
            if !wire.send(&bytes).await {
                break;
            }
        }
        wire.close_output();
        for _ in 0..self.rng.u32(0..4) {
            if !wire.receive().await {
                break;
            }
        }
    }

    /// Comes, asks, and leaves; the last request is sent by half where told so.
    pub(crate) async fn visit(&mut self, batches: u32, half: bool) {
        let town = Rc::clone(&self.town);
        let Some(mut wire) = Wire::connect(&town.reactor, &town.pool, &town.address) else {
            return town.reactor.sleep(TURNED_AWAY).await;
        };
        let entered: Entered = match wire.enter().await {
            Ok(Some(entered)) => entered,
            Ok(None) if town.swarm.may_hang_up() => return,
            Ok(None) => return town.ledger.fail("a client was hung up on in its handshake".to_owned()),
            Err(refused) => return town.ledger.fail(format!("a client was refused: {refused}")),
        };
        town.inside.set(town.inside.get() + 1);
        let session = Session::new(&entered);
        let mut visit = Visit { town: &town, wire, session, flags: entered.flags, sent: Vec::new(), out: Vec::new() };
        for batch in 0..batches {
            visit.out.clear();
            for _ in 0..self.rng.usize(1..=town.swarm.batch) {
                self.ask(&mut visit);
            }
            let last = batch + 1 == batches;
            if last && half {
                self.tear(&mut visit);
            }
            let out = std::mem::take(&mut visit.out);
            let sent = visit.wire.send(&out).await;
            visit.out = out;
            // Whoever tears a request may leave before the replies to the others.
            if (last && half && self.rng.bool()) || !visit.replies().await || !sent {
                break;
            }
        }
        if !half && self.rng.bool() && visit.sent.iter().all(Option::is_none) {
            let mut goodbye = Vec::new();
            visit.session.put_disconnect(&mut goodbye);
            visit.wire.send(&goodbye).await;
        }
        let left = visit.sent.iter().flatten().filter_map(|sent| sent.op);
        town.unanswered.borrow_mut().extend(left);
        town.inside.set(town.inside.get() - 1);
    }

    /// Adds a request to what is sent next.
    fn ask(&mut self, visit: &mut Visit<'_>) {
        let town = visit.town;
        let swarm = &town.swarm;
        let sectors = swarm.load.sectors(&mut self.rng, self.last);
        let sectors = sectors.start..sectors.end.min(sectors.start + LONGEST);
        self.last = sectors.end;
        let wrong = self.rng.u32(0..1000) < swarm.wrong_per_mille;
        let able = |flag| visit.flags.contains(flag);
        let (act, command) = match swarm.load.ask(&mut self.rng) {
            Ask::Read if self.rng.u32(0..4) == 0 => (None, Command::Status),
            Ask::Read => (Some(Act::Read), Command::Read),
            Ask::Flush => (Some(Act::Flush), Command::Flush),
            Ask::Trim if able(TransmissionFlags::SEND_TRIM) => (Some(Act::Trim), Command::Trim),
            Ask::Zeroes if able(TransmissionFlags::SEND_WRITE_ZEROES) => {
                (Some(Act::Zeroes), Command::WriteZeroes { no_hole: self.rng.bool() })
            }
            ask => {
                let fua = ask == Ask::WriteFua;
                (Some(Act::Write { fua }), Command::Write { fua })
            }
        };
        let far = self.rng.u32(0..3);
        town.ledger.pass_over();
        if !town.world.takes() {
            return;
        }
        if wrong && !matches!(command, Command::Flush | Command::Trim) {
            return visit.start_wrong(command, far, sectors.start as u64);
        }
        let sectors = if command == Command::Flush { 0..0 } else { sectors };
        let Some(act) = act else {
            visit.start(None, command, sectors, Vec::new());
            return;
        };
        let op = town.ledger.model.borrow_mut().begin(act, sectors.clone());
        town.world.note(&[8, u64::from(op.0), sectors.start as u64, sectors.len() as u64], || {
            format!("peer: v{} {command:?} {}+{}", op.0, sectors.start, sectors.len())
        });
        let mut payload = Vec::new();
        match command {
            Command::Read => payload = vec![POISON; sectors.len() * SECTOR],
            Command::Write { .. } => {
                payload = vec![0; sectors.len() * SECTOR];
                let version = town.ledger.model.borrow().version_of(op);
                stamp(&mut payload, town.ledger.seed, sectors.start as u64, version);
            }
            _ => {}
        }
        visit.start(Some(op), command, sectors, payload);
    }

    /// Adds a write of which a part is missing.
    fn tear(&mut self, visit: &mut Visit<'_>) {
        let sectors = visit.town.swarm.load.sectors(&mut self.rng, self.last);
        let sectors = sectors.start..sectors.end.min(sectors.start + LONGEST);
        let mut payload = vec![0; sectors.len() * SECTOR];
        stamp(&mut payload, visit.town.ledger.seed, sectors.start as u64, TORN);
        let before = visit.out.len();
        let slot = visit.start(None, Command::Write { fua: false }, sectors, payload);
        // There will be no reply to it.
        visit.sent[slot] = None;
        let there = self.rng.usize(0..visit.out.len() - before);
        visit.out.truncate(before + there);
    }
}

impl Visit<'_> {
    fn start(&mut self, op: Option<OpId>, command: Command, sectors: Range<usize>, payload: Vec<u8>) -> usize {
        let (offset, bytes) = (sectors.start * SECTOR, sectors.len() * SECTOR);
        self.start_at(offset as u64, bytes as u64, Sent { op, command, sectors, wrong: false, payload })
    }

    /// Adds a request that has to be refused: beyond the end, over it, or not in whole blocks.
    fn start_wrong(&mut self, command: Command, far: u32, sector: u64) {
        let end = (self.town.swarm.sectors * SECTOR) as u64;
        let (offset, bytes) = match far {
            0 => (end, 4096),
            1 => (end - 512, 8192),
            _ => (sector * 512 + 1, 511),
        };
        let length = usize::try_from(bytes).expect("a small request");
        let mut payload = vec![0; if matches!(command, Command::Read | Command::Write { .. }) { length } else { 0 }];
        stamp(&mut payload, self.town.ledger.seed, sector, TORN);
        self.start_at(offset, bytes, Sent { op: None, command, sectors: 0..0, wrong: true, payload });
    }

    fn start_at(&mut self, offset: u64, bytes: u64, sent: Sent) -> usize {
        let slot = self.session.start(sent.command, offset, bytes, &mut self.out);
        if matches!(sent.command, Command::Write { .. }) {
            self.out.extend_from_slice(&sent.payload);
        }
        if self.sent.len() <= slot {
            self.sent.resize_with(slot + 1, || None);
        }
        self.sent[slot] = Some(sent);
        slot
    }

    /// Takes replies until there is one to every request; false when the connection ends before.
    async fn replies(&mut self) -> bool {
        while self.sent.iter().any(Option::is_some) {
            match self.take() {
                Ok(true) => {}
                Ok(false) if self.wire.receive().await => {}
                Ok(false) => {
                    if !self.town.swarm.may_hang_up() {
                        self.town.ledger.fail("a client was hung up on".to_owned());
                    }
                    return false;
                }
                Err(violation) => {
                    self.town.ledger.fail(format!("the server broke the protocol: {violation}"));
                    return false;
                }
            }
        }
        true
    }

    /// Takes one part of a reply; false when more is needed for that.
    fn take(&mut self) -> Result<bool, Violation> {
        let ended = if let Some(payload) = self.session.payload() {
            let bytes = self.wire.input.len().min(payload.bytes as usize);
            if bytes == 0 && payload.bytes > 0 {
                return Ok(false);
            }
            let to = &mut self.sent[payload.slot].as_mut().expect("it is in flight").payload;
            to[payload.skip as usize..][..bytes].copy_from_slice(&self.wire.input[..bytes]);
            self.wire.input.drain(..bytes);
            self.session.received(u32::try_from(bytes).expect("a part of a payload"))?
        } else {
            let (used, took) = self.session.take(&self.wire.input)?;
            self.wire.input.drain(..used);
            match took {
                Took::NeedMore(_) => return Ok(false),
                Took::Nothing | Took::Payload => None,
                Took::Zeroes(at) => {
                    let to = &mut self.sent[at.slot].as_mut().expect("it is in flight").payload;
                    to[at.skip as usize..][..at.bytes as usize].fill(0);
                    None
                }
                Took::Ended(ended) => Some(ended),
            }
        };
        if let Some(ended) = ended {
            self.ended(&ended);
        }
        Ok(true)
    }

    /// A request has its reply.
    fn ended(&mut self, ended: &Ended) {
        let Sent { op, command, sectors, wrong, payload } = self.sent[ended.slot].take().expect("it is in flight");
        let (ledger, world) = (&self.town.ledger, &self.town.world);
        let number = op.map_or(0, |op| u64::from(op.0));
        world.note(&[9, number, u64::from(ended.error.unwrap_or(0))], || format!("peer: v{number} {:?}", ended.error));
        match ended.error {
            None if wrong => return ledger.fail(format!("{command:?} was carried out, which is wrong")),
            Some(ESHUTDOWN) if self.town.swarm.crashes => {}
            Some(code) if !wrong && !self.town.swarm.faults => {
                ledger.fail(format!("v{number} {command:?} {sectors:?} failed with {code} on a healthy disk"));
            }
            None if command == Command::Status && ended.extents.is_empty() => ledger.fail("a status tells nothing".to_owned()),
            _ => {}
        }
        let Some(op) = op else { return };
        let mut model = ledger.model.borrow_mut();
        if ended.error.is_none() && command == Command::Read {
            ledger.count_checks(sectors.len());
            if let Err(violation) = model.check_read(op, &payload) {
                ledger.fail(format!("v{number}: {violation}"));
            }
        }
        model.end(op, ended.error.is_none());
    }
}
