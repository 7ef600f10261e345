//! Annexes: threads that serve connections beside the server's own, so that several clients use
//! several cores.
//!
//! ```text
//!   home: listener, handshake ─── Arrival ───▶ annex: Connection, its socket, its buffers
//!         targets ◀── desk ◀───── Errand ───── Away, the target that the connection sees
//!         bio ended ───────────── Answer ────▶ the client's bio ends, the reply leaves
//! ```
//!
//! Stacks stay on their own thread. An annex has a reactor of its own; payload is received into its
//! buffers and lent to the home thread for as long as the request takes, so it is copied no more
//! often than at home. An annex is started when a second client comes, and waits without using any
//! processor time once its clients have left.
//!
//! Invariants:
//! - I1: at most [`ERRANDS_MAX`] requests of an annex are at home; the rest waits in the annex. It has
//!   at most [`CLIENTS_MAX`] clients; more are served at home. So neither mailbox is ever full, and no
//!   thread ever waits for the other.
//! - I2: changes from annexes pass the same gate as those from home.
//! - I3: a client whose requests need not be whole blocks is served at home: what it changes must
//!   be read first, alone.
//! - I4: the server's books are kept at home; a client is in them until its annex says that the last
//!   reply is gone, or that it broke.
//! - I5: an answer gives lent payload back: whatever a target made of the bio has let go of it when
//!   the bio ends.

mod away;
mod desk;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use forebay_block::allocation::Run;
use forebay_block::{Extent, Flags, Limits, Loan, Op, SectorCount, Status};
use forebay_reactor::mailbox::{Mailbox, Post};
use forebay_reactor::{Backend, Reactor};

use self::desk::Desk;
use super::Shared;
use super::connection::Served;
use super::counts::Counters;
use crate::nbd::server::Session;

/// Requests of one annex at home at once.
const ERRANDS_MAX: usize = 1024;

/// Clients of one annex at once.
const CLIENTS_MAX: usize = 512;

/// Makes the backend of an annex, on the annex's thread.
pub type MakeBackend = Arc<dyn Fn() -> io::Result<Box<dyn Backend>> + Send + Sync>;

/// A client that moves to an annex.
struct Arrival {
    /// Its number in the server's books.
    client: u64,
    socket: OwnedFd,
    session: Session,
    /// What it sent behind its handshake.
    input: Vec<u8>,
    export: Facts,
}

/// What an annex knows of an export.
struct Facts {
    limits: Limits,
    sectors: SectorCount,
    counts: Arc<Counters>,
}

/// What an annex wants of a target.
enum Want {
    Bio { op: Op, flags: Flags, extent: Extent, loan: Option<Loan> },
    Allocation { extent: Extent, most: usize },
}

/// A request on its way home. Its tag is its own until it is answered.
struct Errand {
    tag: u32,
    export: usize,
    want: Want,
}

enum ToHome {
    Errand(Errand),
    /// The last reply to this client is gone.
    Left {
        client: u64,
    },
}

enum ToAnnex {
    Arrival(Box<Arrival>),
    Answer {
        tag: u32,
        status: Status,
    },
    Allocation {
        tag: u32,
        runs: Vec<Run>,
    },
    /// New requests are refused from now on.
    Closing,
    /// There is nothing left to do.
    End,
}

/// An annex, as the home thread sees it.
pub(super) struct Annex {
    post: Post<ToAnnex>,
    /// Clients that are there.
    pub(super) clients: Cell<usize>,
    /// What it counts, by the number of the export.
    counts: RefCell<BTreeMap<usize, Arc<Counters>>>,
    thread: Cell<Option<JoinHandle<()>>>,
}

impl Annex {
    /// Starts a thread for clients of `shared`.
    ///
    /// # Errors
    /// When the system gives no thread, ring or descriptors.
    pub(super) fn start(shared: &Rc<Shared>, make: MakeBackend) -> io::Result<Rc<Self>> {
        let (post_home, letters) = Mailbox::new(&shared.reactor, ERRANDS_MAX + CLIENTS_MAX)?;
        let (report, reported) = sync_channel(1);
        let limits = shared.limits;
        let live = move || {
            let opened = make().and_then(|backend| {
                let reactor = Reactor::new(backend);
                // Answers, arrivals, and the two words of the end.
                let (post, mailbox) = Mailbox::new(&reactor, ERRANDS_MAX + CLIENTS_MAX + 2)?;
                Ok((reactor, post, mailbox))
            });
            let (reactor, mailbox) = match opened {
                Ok((reactor, post, mailbox)) => {
                    drop(report.send(Ok(post)));
                    (reactor, mailbox)
                }
                Err(error) => return drop(report.send(Err(error))),
            };
            drop(report);
            away::live(&reactor, limits, post_home, mailbox);
        };
        let thread = std::thread::Builder::new().name("forebay-annex".into()).spawn(live)?;
        let post = reported.recv().map_err(|_| io::Error::other("the thread ended at once"))??;
        let desk = Desk::new(shared, post.clone());
        let annex = Rc::new(Self { post, clients: Cell::new(0), counts: RefCell::default(), thread: Cell::new(Some(thread)) });
        if !shared.reactor.spawn(desk.run(letters, Rc::clone(&annex))) {
            annex.end();
            return Err(io::Error::other("the server has too many tasks"));
        }
        Ok(annex)
    }

    /// What it counts for an export, and from now on counts as the export's.
    fn counts(&self, export: usize, served: &Served) -> Arc<Counters> {
        let mut counts = self.counts.borrow_mut();
        let new = || {
            let counts = Arc::<Counters>::default();
            served.elsewhere.borrow_mut().push(Arc::clone(&counts));
            counts
        };
        Arc::clone(counts.entry(export).or_insert_with(new))
    }

    /// Moves a client there; false when the annex has broken.
    fn welcome(&self, arrival: Arrival) -> bool {
        self.clients.set(self.clients.get() + 1);
        self.tell(ToAnnex::Arrival(Box::new(arrival)))
    }

    /// Lets it refuse new requests.
    pub(super) fn closing(&self) {
        self.tell(ToAnnex::Closing);
    }

    /// Ends its thread, which has no clients any more or hangs up on them. Waits for no I/O: an
    /// annex has only sockets.
    pub(super) fn end(&self) {
        self.tell(ToAnnex::End);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("an annex does not panic");
        }
    }

    /// Tells it something, for which its mailbox has room (I1); false when it has ended.
    fn tell(&self, word: ToAnnex) -> bool {
        self.post.post(word).is_ok()
    }
}

/// Serves the client `guest` of a fresh connection in an annex, if one has fewer clients than the
/// home thread; else gives everything back.
pub(super) fn send_away(
    shared: &Rc<Shared>,
    socket: &OwnedFd,
    guest: super::Guest,
    session: Session,
    input: &[u8],
) -> Result<(), super::Guest> {
    if !session.client_knows_block_size() {
        return Err(guest);
    }
    let Some(annex) = choose(shared) else { return Err(guest) };
    let Ok(socket) = socket.try_clone() else { return Err(guest) };
    let index = session.export();
    let served = Rc::clone(&shared.served.borrow()[index]);
    let counts = annex.counts(index, &served);
    let export = Facts { limits: served.limits, sectors: served.target.sectors(), counts };
    let client = guest.id;
    shared.away.borrow_mut().insert(client, guest);
    if annex.welcome(Arrival { client, socket, session, input: input.to_vec(), export }) {
        return Ok(());
    }
    shared.annexes.borrow_mut().retain(|other| !Rc::ptr_eq(other, &annex));
    let guest = shared.away.borrow_mut().remove(&client);
    Err(guest.expect("it was put there above"))
}

/// The annex for one more client, which counts at home already; `None` when it is best served there.
fn choose(shared: &Rc<Shared>) -> Option<Rc<Annex>> {
    let others_at_home = shared.entered.get() - 1 - shared.away.borrow().len();
    if others_at_home < shared.limits.home_clients_min {
        return None;
    }
    let least = shared.annexes.borrow().iter().min_by_key(|annex| annex.clients.get()).cloned();
    if least.as_ref().is_none_or(|annex| annex.clients.get() > 0)
        && let Some(annex) = one_more(shared)
    {
        return Some(annex);
    }
    least.filter(|annex| {
        let clients = annex.clients.get();
        clients < CLIENTS_MAX && (clients < others_at_home || shared.limits.home_clients_min == 0)
    })
}

/// Starts an annex, if there may be one more.
fn one_more(shared: &Rc<Shared>) -> Option<Rc<Annex>> {
    if shared.annexes.borrow().len() >= shared.limits.annexes_max {
        return None;
    }
    let make = shared.annex_backend.borrow().clone()?;
    match Annex::start(shared, make) {
        Ok(annex) => {
            shared.annexes.borrow_mut().push(Rc::clone(&annex));
            Some(annex)
        }
        Err(error) => {
            tracing::warn!("fewer threads than wanted serve clients: {error}");
            shared.annex_backend.take();
            None
        }
    }
}
