//! The NBD server: clients on sockets, their requests as bios on targets.
//!
//! ```text
//!   listener ──▶ negotiate ──▶ receive ──▶ submit ──▶ Target::submit
//!     socket      handshake    headers,      │ unaligned changes: read, change, write
//!                              payloads      ▼
//!   client ◀────────────────── reply ◀── bio ended
//! ```
//!
//! Everything lives on one reactor, unless it is given threads ([`Server::use_threads`]): then
//! further clients are served on those, and only the targets stay. What comes before: the socket. What comes after: the first
//! target of an export, in `forebay_block::Table`.
//!
//! 1. A client that leaves, whatever is in flight, harms nobody: what it sent in full is carried
//!    out, what it sent in part is not.
//! 2. No client makes the server use more than its share ([`ServeLimits`]): one that sends more than
//!    that waits, because nothing is received from it.
//! 3. Only bytes that a target filled leave the server.
//! 4. A flush covers the writes of all connections: they share the target.
//!
//! ```no_run
//! # fn serve(target: std::rc::Rc<dyn forebay_block::Target>) -> Result<(), Box<dyn std::error::Error>> {
//! use forebay_export::serve::{Listen, Offer, ServeLimits, Server};
//! use forebay_reactor::{BufferPool, Reactor, Uring};
//!
//! let reactor = Reactor::new(Box::new(Uring::new()?));
//! let server = Server::new(&reactor, &BufferPool::new(&reactor), ServeLimits::default());
//! server.add_export(&Offer::new("disk").as_default(), target)?;
//! println!("{}", server.listen(Listen::Unix("/run/forebay.sock".into()))?);
//! reactor.run(reactor.sleep(std::time::Duration::from_secs(3600)))?;
//! reactor.run(server.shutdown())?;
//! # Ok(())
//! # }
//! ```

mod annex;
mod connection;
mod counts;
mod listener;
mod negotiate;
mod receive;
mod reply;
mod submit;
mod unaligned;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_block::{Ability, Limits, Target};
use forebay_reactor::{BufferPool, JobPool, Reactor};
use rustix::net::{Shutdown, shutdown};

use self::annex::Annex;
pub use self::annex::MakeBackend;
use self::connection::{Bell, Connection, Served};
pub use self::counts::ExportCounts;
pub use self::listener::Listen;
use self::listener::Listening;
use self::negotiate::within;
use self::receive::Receiver;
use self::reply::Sender;
use self::unaligned::Work;
use crate::nbd::TransmissionFlags;
use crate::nbd::server::{BlockBytes, Export, ExportError, Unaligned};
use crate::uri::Uri;

/// Why something cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The protocol cannot express the export.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The name is taken.
    #[error("an export called {name:?} is served already: give each export a name of its own")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// The socket's path is taken by something else.
    #[error("{path} exists and is not a socket: give another path")]
    NotSocket {
        /// The path.
        path: PathBuf,
    },
    /// A living server has the socket.
    #[error("a server answers on {path} already: stop it, or give another path")]
    Answered {
        /// The path.
        path: PathBuf,
    },
    /// Somebody else may be about to listen on the socket.
    #[error("{path} exists and another program has locked its directory: try again, or give another path")]
    Starting {
        /// The path.
        path: PathBuf,
    },
    /// The address is reachable from other machines.
    #[error(
        "{address} is reachable from other machines, and NBD here has neither encryption nor passwords: \
         use a loopback address, or allow this explicitly"
    )]
    Exposed {
        /// The address.
        address: SocketAddr,
    },
    /// The inherited descriptor is something else.
    #[error("the inherited descriptor is not a listening unix or TCP socket: check the socket unit")]
    NotListening,
    /// The system refused.
    #[error("cannot listen on {at}: {source}")]
    Listen {
        /// Where.
        at: String,
        /// What the system said.
        source: io::Error,
    },
    /// The reactor has too many tasks.
    #[error("the server has too many tasks: use fewer listeners")]
    Tasks,
}

/// What clients may use up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeLimits {
    /// How long a handshake may take.
    pub handshake: Duration,
    /// Clients of one listener that may be in their handshake, at least 1; the oldest makes way.
    pub half_open_max: usize,
    /// Clients of the server behind their handshake; while there are so many, nobody is taken, and
    /// those in their handshake may come on top.
    pub connections_max: usize,
    /// Payload of one client in flight, bytes; a single request may be larger.
    pub payload_bytes_max: u64,
    /// Requests of one client in flight, at least 1.
    pub requests_max: u32,
    /// How long a shutdown waits for requests in flight.
    pub drain: Duration,
    /// Threads beside the server's own that may serve clients; see [`Server::use_threads`].
    pub annexes_max: usize,
    /// Clients that are served on the server's own thread before others get threads.
    pub home_clients_min: usize,
}

/// Cores that a server uses unless told otherwise: stacks are on one, which more would only wait for.
const CORES_USED_MAX: usize = 4;

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            half_open_max: 100,
            connections_max: 256,
            payload_bytes_max: 64 << 20,
            requests_max: 128,
            drain: Duration::from_secs(10),
            annexes_max: std::thread::available_parallelism().map_or(1, usize::from).min(CORES_USED_MAX) - 1,
            home_clients_min: 1,
        }
    }
}

/// How a target is offered to clients.
#[derive(Clone)]
pub struct Offer {
    name: String,
    description: String,
    read_only: bool,
    default: bool,
    unaligned: Unaligned,
}

impl Offer {
    /// Offers a target as `name`, for reading and writing.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), description: String::new(), read_only: false, default: false, unaligned: Unaligned::Served }
    }

    /// Adds a text for people, shown in listings.
    #[must_use]
    pub fn described(mut self, description: &str) -> Self {
        description.clone_into(&mut self.description);
        self
    }

    /// Takes no changes.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Answers to the empty name too.
    #[must_use]
    pub fn as_default(mut self) -> Self {
        self.default = true;
        self
    }

    /// Turns away clients that do not ask for the block sizes, instead of serving their unaligned
    /// requests by reading around them.
    #[must_use]
    pub fn aligned_only(mut self) -> Self {
        self.unaligned = Unaligned::Refused;
        self
    }

    fn export(&self, target: &dyn Target) -> Result<Export, ExportError> {
        let limits = target.limits();
        let preferred = limits.physical_bytes.max(4096);
        let sizes = BlockBytes::new(limits.logical_bytes, preferred)?;
        let flags = flags(&limits, self.read_only);
        // Sizes beyond 2^63 bytes are refused below.
        let size_bytes = target.sectors().0.saturating_mul(512);
        let export = Export::new(&self.name, size_bytes, flags, sizes)?;
        let export = export.with_description(&self.description)?.with_unaligned(self.unaligned);
        Ok(if self.default { export.as_default() } else { export })
    }
}

/// What a target with these limits can do for clients.
fn flags(limits: &Limits, read_only: bool) -> TransmissionFlags {
    let mut flags = TransmissionFlags::CAN_MULTI_CONN | TransmissionFlags::SEND_CACHE;
    let mut add = |able: bool, flag| {
        if able {
            flags = flags | flag;
        }
    };
    let flush = limits.flush != Ability::No;
    add(read_only, TransmissionFlags::READ_ONLY);
    add(flush, TransmissionFlags::SEND_FLUSH);
    add(flush || limits.fua != Ability::No, TransmissionFlags::SEND_FUA);
    add(limits.discard != Ability::No, TransmissionFlags::SEND_TRIM);
    add(limits.write_zeroes != Ability::No, TransmissionFlags::SEND_WRITE_ZEROES | TransmissionFlags::SEND_FAST_ZERO);
    flags
}

/// Unaligned changes worked on at once, of all exports; an export has at most one.
const UNALIGNED_JOBS: usize = 16;

/// Block status requests of one export worked on at once; more wait.
const STATUS_JOBS: usize = 16;

/// What all parts of a server share.
pub(in crate::serve) struct Shared {
    reactor: Reactor,
    pool: BufferPool,
    limits: ServeLimits,
    exports: RefCell<Vec<Export>>,
    served: RefCell<Vec<Rc<Served>>>,
    jobs: JobPool<Work>,
    closing: Rc<Cell<bool>>,
    listeners: RefCell<Vec<Rc<Listening>>>,
    /// Every client, in its handshake or behind it, and whether it is behind it.
    clients: RefCell<BTreeMap<u64, (Rc<OwnedFd>, bool)>>,
    /// How many clients are behind their handshake.
    entered: Cell<usize>,
    next_id: Cell<u64>,
    /// Rings for a shutdown that waits for clients to leave.
    left: Bell,
    annexes: RefCell<Vec<Rc<Annex>>>,
    annex_backend: RefCell<Option<MakeBackend>>,
    /// Clients that are served in annexes, by number.
    away: RefCell<BTreeMap<u64, Guest>>,
}

/// A client's place in the server's books, given back on drop.
struct Guest {
    shared: Rc<Shared>,
    id: u64,
    served: Option<Rc<Served>>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(served) = &self.served {
            served.counts.connections.take_off(1);
            self.shared.entered.set(self.shared.entered.get() - 1);
        }
        self.shared.clients.borrow_mut().remove(&self.id);
        self.shared.left.ring();
        for listener in self.shared.listeners.borrow().iter() {
            listener.bell.ring();
        }
    }
}

impl Shared {
    fn is_full(&self) -> bool {
        self.entered.get() >= self.limits.connections_max
    }

    /// Enters a client into the books.
    fn register(&self, socket: &Rc<OwnedFd>) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        self.clients.borrow_mut().insert(id, (Rc::clone(socket), false));
        id
    }

    /// Serves the client `id` at `socket` until it leaves.
    fn serve(self: &Rc<Self>, listening: &Rc<Listening>, socket: Rc<OwnedFd>, id: u64) {
        let (shared, listening) = (Rc::clone(self), Rc::clone(listening));
        let guest = Guest { shared: Rc::clone(self), id, served: None };
        let started = self.reactor.spawn(async move {
            let entered = negotiate::negotiate(&shared, &socket).await;
            listening.handshake_over(guest.id);
            drop(listening);
            match entered {
                Some(entered) => Box::pin(transmit(&shared, socket, guest, entered)).await,
                // A step that is still under way would keep it open.
                None => drop(shutdown(&*socket, Shutdown::Both)),
            }
        });
        if !started {
            tracing::warn!("a client is turned away: the server has too many tasks");
        }
    }

    fn hang_up(&self, half_open_only: bool, how: Shutdown) {
        for (socket, entered) in self.clients.borrow().values() {
            if !half_open_only || !*entered {
                let _ = shutdown(&**socket, how);
            }
        }
    }
}

/// Serves a client behind its handshake.
async fn transmit(shared: &Rc<Shared>, socket: Rc<OwnedFd>, mut guest: Guest, mut entered: negotiate::Entered) {
    let served = Rc::clone(&shared.served.borrow()[entered.session.export()]);
    if let Some(client) = shared.clients.borrow_mut().get_mut(&guest.id) {
        client.1 = true;
    }
    served.counts.connections.add(1);
    served.counts.connections_total.add(1);
    guest.served = Some(Rc::clone(&served));
    shared.entered.set(shared.entered.get() + 1);
    let input = &entered.input.bytes_mut()[entered.start..entered.end];
    let guest = match annex::send_away(shared, &socket, guest, entered.session, input) {
        Ok(()) => return,
        Err(guest) => guest,
    };
    let closing = Rc::clone(&shared.closing);
    let connection = Connection::new(&shared.reactor, &shared.pool, socket, entered.session, served, shared.limits, closing);
    let receiver = Receiver::new(Rc::clone(&connection), input);
    drop(entered);
    converse(connection, receiver, guest).await;
}

/// Serves a connection until its client leaves; `place` is dropped after its last reply.
async fn converse(connection: Rc<Connection>, receiver: Receiver, place: impl Sized + 'static) {
    let place = Rc::new(place);
    let other = Rc::clone(&place);
    let sender = Sender::new(Rc::clone(&connection));
    let sending = connection.reactor.spawn(async move {
        sender.run().await;
        drop(other);
    });
    if sending {
        drop(connection);
        receiver.run().await;
    } else {
        tracing::warn!("a client is turned away: its thread has too many tasks");
    }
    drop(place);
}

/// A server of named exports on one reactor. Dropping it does not end it: [`Server::shutdown`]
/// does.
pub struct Server(Rc<Shared>);

impl Server {
    /// A server without exports and listeners.
    #[must_use]
    pub fn new(reactor: &Reactor, pool: &BufferPool, limits: ServeLimits) -> Self {
        Self(Rc::new(Shared {
            reactor: reactor.clone(),
            pool: pool.clone(),
            limits,
            exports: RefCell::default(),
            served: RefCell::default(),
            jobs: reactor.job_pool(UNALIGNED_JOBS, Work::run),
            closing: Rc::default(),
            listeners: RefCell::default(),
            clients: RefCell::default(),
            entered: Cell::new(0),
            next_id: Cell::new(0),
            left: Bell::default(),
            annexes: RefCell::default(),
            annex_backend: RefCell::default(),
            away: RefCell::default(),
        }))
    }

    /// Lets the server use more threads, at most [`ServeLimits::annexes_max`], each with a backend
    /// that `make` makes on it.
    pub fn use_threads(&self, make: MakeBackend) {
        *self.0.annex_backend.borrow_mut() = Some(make);
    }

    /// Offers `target`. Abilities, size and block sizes follow from the target's own.
    ///
    /// # Errors
    /// [`ServeError::Export`] if the protocol cannot express it, [`ServeError::Duplicate`] if the
    /// name is taken.
    pub fn add_export(&self, offer: &Offer, target: Rc<dyn Target>) -> Result<(), ServeError> {
        let shared = &self.0;
        let export = offer.export(&*target)?;
        if shared.exports.borrow().iter().any(|other| other.name() == offer.name) {
            return Err(ServeError::Duplicate { name: offer.name.clone() });
        }
        let mut served = shared.served.borrow_mut();
        // Two names of one target exclude each other's unaligned changes.
        let twin = served.iter().find(|other| Rc::ptr_eq(&other.target, &target));
        let gate = twin.map_or_else(Rc::default, |other: &Rc<Served>| Rc::clone(&other.gate));
        served.push(Rc::new(Served::new(&shared.reactor, target, gate, Arc::default(), shared.jobs.clone())));
        shared.exports.borrow_mut().push(export);
        Ok(())
    }

    /// Listens, and tells the URI of the default export there; [`Uri::with_export`] makes those of
    /// the others.
    ///
    /// # Errors
    /// [`ServeError`], one sentence.
    pub fn listen(&self, at: Listen) -> Result<Uri, ServeError> {
        let (listening, uri) = listener::open(at)?;
        if !self.0.reactor.spawn(Rc::clone(&listening).run(Rc::clone(&self.0))) {
            listening.close();
            return Err(ServeError::Tasks);
        }
        self.0.listeners.borrow_mut().push(listening);
        Ok(uri)
    }

    /// Stops: no client is taken any more, what is in flight is answered, new requests are refused
    /// with `NBD_ESHUTDOWN`, then every connection is closed. Waits for at most
    /// [`ServeLimits::drain`], and returns whether everything was answered by then.
    pub async fn shutdown(&self) -> bool {
        let shared = &self.0;
        shared.closing.set(true);
        for listener in shared.listeners.take() {
            listener.close();
        }
        shared.annex_backend.take();
        for annex in shared.annexes.borrow().iter() {
            annex.closing();
        }
        shared.hang_up(true, Shutdown::Both);
        shared.hang_up(false, Shutdown::Read);
        let deadline = shared.reactor.now() + shared.limits.drain;
        let empty = || shared.clients.borrow().is_empty();
        let all_left = within(&shared.reactor, deadline, shared.left.wait(empty)).await.is_some();
        shared.hang_up(false, Shutdown::Both);
        for annex in shared.annexes.take() {
            annex.end();
        }
        // Who did not leave in time has lost its thread.
        drop(shared.away.take());
        all_left
    }

    /// What each export did so far, by name.
    #[must_use]
    pub fn counts(&self) -> Vec<(String, ExportCounts)> {
        let exports = self.0.exports.borrow();
        let served = self.0.served.borrow();
        exports.iter().zip(served.iter()).map(|(export, served)| (export.name().to_owned(), served.counted())).collect()
    }
}
