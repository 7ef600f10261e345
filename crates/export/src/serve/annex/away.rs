//! The annex itself: its thread's loop, and the target that stands there for one at home.
//!
//! ```text
//!   Connection ─ submit ─▶ Away ─▶ Errands: a tag, or the queue ─▶ home
//!              ◀─ end ──── by tag ◀────────────────────── Answer ──┘
//! ```

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use forebay_block::allocation::{Allocation, Found, LookUp, Run};
use forebay_block::{Bio, Extent, Limits, SectorCount, Status, Target};
use forebay_reactor::mailbox::{Mailbox, Post};
use forebay_reactor::{BufferPool, JobPool, Reactor};

use super::super::connection::{Connection, Served};
use super::super::receive::Receiver;
use super::super::unaligned::Work;
use super::super::{ServeLimits, UNALIGNED_JOBS, converse};
use super::{Arrival, ERRANDS_MAX, Errand, ToAnnex, ToHome, Want};

/// Serves clients until the annex is told to end, or its backend breaks. Clients that are left then
/// are hung up on.
pub(super) fn live(reactor: &Reactor, limits: ServeLimits, home: Post<ToHome>, letters: Mailbox<ToAnnex>) {
    let rooms = Rooms {
        reactor: reactor.clone(),
        pool: BufferPool::new(reactor),
        limits,
        errands: Rc::new(Errands { home, under_way: RefCell::default(), free: RefCell::default(), queue: RefCell::default() }),
        jobs: reactor.job_pool(UNALIGNED_JOBS, Work::run),
        exports: RefCell::default(),
        closing: Rc::default(),
    };
    let errands = Rc::clone(&rooms.errands);
    if let Err(error) = reactor.run(rooms.run(letters)) {
        // Those of the other threads go on.
        tracing::error!("a thread that served clients broke, and they are cut off: {error}");
        leave_to_the_kernel(reactor.clone());
    }
    reactor.clear();
    errands.give_up();
}

/// Keeps a reactor for ever: the kernel may still write to the memory of its requests.
#[expect(clippy::disallowed_methods, reason = "freeing what a broken ring may still write to would be worse than a leak")]
fn leave_to_the_kernel(reactor: Reactor) {
    std::mem::forget(reactor);
}

/// What all connections of an annex share.
struct Rooms {
    reactor: Reactor,
    pool: BufferPool,
    limits: ServeLimits,
    errands: Rc<Errands>,
    jobs: JobPool<Work>,
    /// Exports that were asked for so far, by number.
    exports: RefCell<BTreeMap<usize, Rc<Served>>>,
    closing: Rc<Cell<bool>>,
}

impl Rooms {
    async fn run(self, mut letters: Mailbox<ToAnnex>) {
        while let Some(letter) = letters.receive().await {
            match letter {
                ToAnnex::Arrival(arrival) => self.welcome(*arrival),
                ToAnnex::Answer { tag, status } => self.errands.answered(tag, status),
                ToAnnex::Allocation { tag, runs } => self.errands.looked_up(tag, runs),
                ToAnnex::Closing => self.closing.set(true),
                ToAnnex::End => return,
            }
        }
    }

    fn served(&self, number: usize, arrival: &Arrival) -> Rc<Served> {
        let mut exports = self.exports.borrow_mut();
        let served = exports.entry(number).or_insert_with(|| {
            let target = Away {
                export: number,
                limits: arrival.export.limits,
                sectors: arrival.export.sectors,
                errands: Rc::clone(&self.errands),
            };
            let counts = arrival.export.counts.clone();
            Rc::new(Served::new(&self.reactor, Rc::new(target), Rc::default(), counts, self.jobs.clone()))
        });
        Rc::clone(served)
    }

    fn welcome(&self, arrival: Arrival) {
        let served = self.served(arrival.session.export(), &arrival);
        let Arrival { client, socket, session, input, .. } = arrival;
        let socket = Rc::new(socket);
        let connection =
            Connection::new(&self.reactor, &self.pool, socket, session, served, self.limits, Rc::clone(&self.closing));
        let receiver = Receiver::new(Rc::clone(&connection), &input);
        let stay = Stay { client, connection: Rc::clone(&connection), errands: Rc::clone(&self.errands) };
        if !self.reactor.spawn(converse(connection, receiver, stay)) {
            tracing::warn!("a client is turned away: its thread has too many tasks");
        }
    }
}

/// A client's stay, of which client and home hear the end.
struct Stay {
    client: u64,
    connection: Rc<Connection>,
    errands: Rc<Errands>,
}

impl Drop for Stay {
    fn drop(&mut self) {
        // Home holds the socket as well: that this end lets go of it is not enough.
        self.connection.hang_up();
        // The mailbox has room for every client; home is gone only when the process ends.
        drop(self.errands.home.post(ToHome::Left { client: self.client }));
    }
}

/// Where an answer goes.
enum Waiting {
    Bio(Bio),
    LookUp(Rc<Answer>),
}

#[derive(Default)]
struct Answer {
    runs: RefCell<Option<Vec<Run>>>,
    waker: Cell<Option<Waker>>,
}

/// Requests that are at home, and those that wait for a tag.
struct Errands {
    home: Post<ToHome>,
    under_way: RefCell<Vec<Option<Waiting>>>,
    free: RefCell<Vec<u32>>,
    queue: RefCell<VecDeque<(usize, Want, Waiting)>>,
}

impl Errands {
    fn send(&self, export: usize, want: Want, waiting: Waiting) {
        match self.tag() {
            Some(tag) => self.leave(tag, export, want, waiting),
            None => self.queue.borrow_mut().push_back((export, want, waiting)),
        }
    }

    fn tag(&self) -> Option<u32> {
        if let Some(tag) = self.free.borrow_mut().pop() {
            return Some(tag);
        }
        let mut under_way = self.under_way.borrow_mut();
        let tag = under_way.len();
        (tag < ERRANDS_MAX).then(|| {
            under_way.push(None);
            u32::try_from(tag).expect("ERRANDS_MAX fits 32 bits")
        })
    }

    fn leave(&self, tag: u32, export: usize, want: Want, waiting: Waiting) {
        self.under_way.borrow_mut()[tag as usize] = Some(waiting);
        // There is room for as many as there are tags; home is gone only when the process ends.
        drop(self.home.post(ToHome::Errand(Errand { tag, export, want })));
    }

    /// Takes what waited for `tag`, and gives the tag to the next in the queue.
    fn take(&self, tag: u32) -> Waiting {
        let waiting = self.under_way.borrow_mut()[tag as usize].take().expect("an answer has its errand");
        let next = self.queue.borrow_mut().pop_front();
        match next {
            Some((export, want, next)) => self.leave(tag, export, want, next),
            None => self.free.borrow_mut().push(tag),
        }
        waiting
    }

    /// Ends what waits for answers that nobody will hear. What it lent stays mapped as long as home
    /// holds it.
    fn give_up(&self) {
        drop(self.queue.take());
        drop(self.under_way.take());
    }

    fn answered(&self, tag: u32, status: Status) {
        if let Waiting::Bio(bio) = self.take(tag) {
            bio.end(status);
        }
    }

    fn looked_up(&self, tag: u32, runs: Vec<Run>) {
        if let Waiting::LookUp(answer) = self.take(tag) {
            answer.runs.replace(Some(runs));
            if let Some(waker) = answer.waker.take() {
                waker.wake();
            }
        }
    }
}

/// A target at home, as connections of an annex see it.
struct Away {
    export: usize,
    limits: Limits,
    sectors: SectorCount,
    errands: Rc<Errands>,
}

impl Target for Away {
    fn kind(&self) -> &'static str {
        "away"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn sectors(&self) -> SectorCount {
        self.sectors
    }

    /// Sends the bio home. Its payload is one run of a pool's memory, as that of every connection.
    fn submit(&self, bio: Bio) {
        let loan = bio.loan();
        assert!(loan.is_some() || bio.segments().is_none(), "a connection's payload is one run of a pool's memory");
        let want = Want::Bio { op: bio.op(), flags: bio.flags(), extent: bio.extent(), loan };
        self.errands.send(self.export, want, Waiting::Bio(bio));
    }

    fn allocation(&self, extent: Extent, told: &mut Allocation) {
        let whom = Rc::new(Elsewhere { export: self.export, errands: Rc::clone(&self.errands) });
        told.ask(&(whom as Rc<dyn LookUp>), extent);
    }
}

/// Asks a target at home for its allocation.
struct Elsewhere {
    export: usize,
    errands: Rc<Errands>,
}

impl LookUp for Elsewhere {
    fn look_up(&self, extent: Extent, most: usize) -> Found {
        let answer = Rc::<Answer>::default();
        let want = Want::Allocation { extent, most };
        self.errands.send(self.export, want, Waiting::LookUp(Rc::clone(&answer)));
        Box::pin(poll_fn(move |cx| {
            if let Some(runs) = answer.runs.take() {
                return Poll::Ready(runs);
            }
            answer.waker.set(Some(cx.waker().clone()));
            Poll::Pending
        }))
    }
}
