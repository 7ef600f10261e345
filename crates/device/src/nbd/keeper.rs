//! Keeps the connections of a device: makes them, notices that they ended, makes new ones, and has what had
//! no reply sent again.
//!
//! ```text
//!   up ── one ends, or a request is overdue ──▶ all are ended, their requests collected ──▶ down
//!    ▲                                                                                       │
//!    └──── reached, and still the same export ◀── attempts, with pauses that double ◀────────┤
//!                          ▲                                                                 ▼ time is up
//!                          └────────── a request comes: one attempt ◀──── away: requests fail
//! ```
//!
//! All connections end together: what one server process acknowledged is known to be in one place only
//! while all connections are to that process. What happens to requests that had no reply:
//!
//! | the connection | reads, status | changes | flushes |
//! |---|---|---|---|
//! | was lost, or the server said that it shuts down | sent again | sent again | sent again, or fail (I2 of [`super::remote`]) |
//! | or another one had a request without reply for too long | sent again | fail: the server may still be at work on them | as above |
//! | brought nonsense | fail | fail | fail |
//!
//! Invariants:
//! - I1: nothing is sent again for ever: each loss while a request was with the server counts against it, and
//!   more so where its own reply did not come in time; at [`LOSSES_MAX`] it fails.
//! - I2: a server that comes back and brings no reply before it is lost again is left alone for a while, twice
//!   as long each time.
//! - I3: there are several connections only as long as each of them came with the promise that a flush on one
//!   covers all. A server that takes the promise back while it is in use gets one connection from then on.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use forebay_nbd::TransmissionFlags;
use forebay_nbd::client::Entered;
use forebay_reactor::Reactor;
use rustix::io::Errno;

use super::dial::{Dialled, dial};
use super::error::{Broken, NbdError};
use super::link::{Link, Remains};
use super::remote::{Remote, Standing};
use super::work::Work;

/// Pause after the first failed attempt to reach the server, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How often a request is with a server that is lost before it fails.
const LOSSES_MAX: u32 = 6;
/// For how many losses it counts when the request itself was not answered in time.
const SILENCE: u32 = 3;
/// How often overdue requests are looked for, as a part of the time that they have.
const LOOKS: u32 = 4;

/// Begins with the first connection, and ends when the device is closed.
pub(super) async fn keep(remote: Rc<Remote>, first: Dialled) {
    let mut dialled = Some(first);
    loop {
        if let Some(dialled) = dialled.take()
            && !bring_up(&remote, dialled)
            && let Some(reactor) = remote.reactor()
        {
            sleep(&remote, &reactor, PAUSE_MAX).await;
        }
        watch(&remote).await;
        let why = tear_down(&remote).await;
        if remote.standing.get() != Standing::Closed {
            tracing::warn!("{}: {why}: connecting again", remote.uri);
            rest(&remote).await;
            dialled = Box::pin(reconnect(&remote)).await;
        }
        if remote.standing.get() == Standing::Closed {
            return remote.fail_waiting(Errno::SHUTDOWN);
        }
    }
}

/// Waits after a connection that brought no reply (I2).
async fn rest(remote: &Rc<Remote>) {
    let fruitless = remote.fruitless.get();
    remote.fruitless.set(fruitless.saturating_add(1));
    if let (Some(doublings), Some(reactor)) = (fruitless.checked_sub(1), remote.reactor()) {
        sleep(remote, &reactor, PAUSE_FIRST.saturating_mul(1 << doublings.min(16)).min(PAUSE_MAX)).await;
    }
}

/// Whether a connection came with the promise that several may be used (I3).
fn promises(dialled: &Dialled) -> bool {
    dialled.entered.flags.contains(TransmissionFlags::CAN_MULTI_CONN)
}

/// Starts to use a first connection, and has more of them made where the server takes several. False when
/// the reactor has too much to do for that.
fn bring_up(remote: &Rc<Remote>, dialled: Dialled) -> bool {
    if remote.standing.get() == Standing::Closed {
        return true;
    }
    let several = promises(&dialled) && !remote.single.get() && remote.options.connections > 1;
    let Some(reactor) = remote.reactor() else { return false };
    let Some(link) = Link::start(remote, &reactor, dialled) else { return false };
    remote.links.borrow_mut().push(Rc::clone(&link));
    remote.standing.set(Standing::Up);
    remote.send_waiting();
    if several {
        // Without them the device works as well.
        let _ = reactor.spawn(join(Rc::clone(remote), link));
    }
    true
}

/// Makes further connections while the first one is up. A server that takes no more is left at that.
async fn join(remote: Rc<Remote>, first: Rc<Link>) {
    for _ in 1..remote.options.connections {
        let Some(reactor) = remote.reactor() else { return };
        let dialled = dial(&reactor, remote.pool(), &remote.names, &remote.uri, remote.options.dial).await;
        let dialled = match dialled {
            Ok(dialled) => dialled,
            Err(error) => return tracing::debug!("no further connection is made: {error}"),
        };
        let current = remote.links.borrow().first().is_some_and(|link| Rc::ptr_eq(link, &first));
        if !current || remote.standing.get() != Standing::Up || same(&remote, &dialled.entered).is_err() {
            return;
        }
        if !promises(&dialled) {
            remote.single.set(true);
            if remote.links.borrow().len() > 1 {
                first.sever(Broken::Alone);
            }
            return;
        }
        let Some(link) = Link::start(&remote, &reactor, dialled) else { return };
        remote.links.borrow_mut().push(link);
    }
}

/// Waits until a connection ended or the device is closed; ends those that have overdue requests.
async fn watch(remote: &Rc<Remote>) {
    while remote.standing.get() == Standing::Up {
        let Some(reactor) = remote.reactor() else { return };
        let (now, limit) = (reactor.now(), remote.options.reply);
        let silent = |link: &&Rc<Link>| link.oldest().is_some_and(|oldest| now.saturating_sub(oldest) > limit);
        if let Some(link) = remote.links.borrow().iter().find(silent) {
            return link.sever(Broken::Silent(limit));
        }
        let busy = remote.links.borrow().iter().any(|link| link.load() > 0);
        remote.watched.set(busy);
        let ended = || remote.links.borrow().iter().any(|link| link.broken().is_some());
        let mut sleep = pin!(reactor.sleep(limit / LOOKS));
        drop(reactor);
        let over = poll_fn(|cx| {
            if ended() || remote.standing.get() != Standing::Up {
                return Poll::Ready(true);
            }
            if busy && sleep.as_mut().poll(cx).is_ready() {
                return Poll::Ready(false);
            }
            if !busy && remote.links.borrow().iter().any(|link| link.load() > 0) {
                return Poll::Ready(false);
            }
            remote.set_keeper(cx.waker().clone());
            Poll::Pending
        })
        .await;
        remote.watched.set(false);
        if over {
            return;
        }
    }
}

/// Ends all connections and collects what they left; why those ended that did by themselves.
async fn tear_down(remote: &Rc<Remote>) -> String {
    let links = remote.links.take();
    let closed = remote.standing.get() == Standing::Closed;
    if !closed {
        remote.standing.set(Standing::Down);
    }
    let mut why: Vec<String> = links.iter().filter_map(|link| link.broken()).map(|broken| broken.to_string()).collect();
    why.dedup();
    for link in &links {
        link.sever(if closed { Broken::Closed } else { Broken::Sibling });
    }
    poll_fn(|cx| {
        if links.iter().all(|link| link.is_over()) {
            return Poll::Ready(());
        }
        remote.set_keeper(cx.waker().clone());
        Poll::Pending
    })
    .await;
    collect(remote, &links);
    if why.is_empty() { "there is no connection".to_owned() } else { why.join(", and ") }
}

/// Collects what connections left that are over: what is to be sent again waits, and the rest fails.
fn collect(remote: &Remote, links: &[Rc<Link>]) {
    let silent = links.iter().any(|link| matches!(link.broken(), Some(Broken::Silent(_))));
    let (now, limit) = (remote.now(), remote.options.reply);
    let (mut again, mut failed) = (Vec::new(), Vec::new());
    for link in links {
        let nonsense = matches!(link.broken(), Some(Broken::Nonsense(_)));
        let Remains { sent, unsent, ended } = link.take_apart();
        remote.ended_early(ended);
        for mut work in sent {
            let overdue = silent && now.saturating_sub(work.started) > limit;
            work.losses += if overdue { SILENCE } else { 1 };
            if nonsense {
                failed.push((work, Errno::NOTCONN));
            } else if silent && work.changes() {
                failed.push((work, Errno::TIMEDOUT));
            } else {
                again.push(work);
            }
        }
        again.extend(unsent);
    }
    let (given_up, again): (Vec<Work>, Vec<Work>) = again.into_iter().partition(|work| work.losses >= LOSSES_MAX);
    if !given_up.is_empty() {
        tracing::warn!("{}: {} requests fail that it was lost with again and again", remote.uri, given_up.len());
    }
    failed.extend(given_up.into_iter().map(|work| (work, Errno::IO)));
    remote.lose(again);
    for (work, error) in failed {
        remote.finish(work, error);
    }
}

/// Tries until there is a connection, or the device is closed.
async fn reconnect(remote: &Rc<Remote>) -> Option<Dialled> {
    let mut until = remote.now().saturating_add(remote.options.away);
    let mut pause = PAUSE_FIRST;
    while remote.standing.get() != Standing::Closed {
        let reactor = remote.reactor()?;
        let error = match attempt(remote, &reactor).await {
            Ok(dialled) => {
                tracing::info!("{} is reached again", remote.uri);
                return Some(dialled);
            }
            Err(error) => error,
        };
        if remote.standing.get() == Standing::Closed {
            break;
        }
        if reactor.now() < until {
            sleep(remote, &reactor, pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            continue;
        }
        drop(reactor);
        tracing::warn!("{error}: requests fail until it is reached again");
        remote.standing.set(Standing::Away { tried: remote.now() });
        remote.fail_waiting(Errno::NOTCONN);
        wait_for_request(remote).await;
        until = Duration::ZERO;
    }
    None
}

async fn attempt(remote: &Rc<Remote>, reactor: &Reactor) -> Result<Dialled, NbdError> {
    let dialled = dial(reactor, remote.pool(), &remote.names, &remote.uri, remote.options.dial).await?;
    same(remote, &dialled.entered)?;
    Ok(dialled)
}

/// Waits for `pause`, or until the device is closed.
async fn sleep(remote: &Rc<Remote>, reactor: &Reactor, pause: Duration) {
    let mut sleep = pin!(reactor.sleep(pause));
    poll_fn(|cx| {
        if remote.standing.get() == Standing::Closed {
            return Poll::Ready(());
        }
        remote.set_keeper(cx.waker().clone());
        sleep.as_mut().poll(cx)
    })
    .await;
}

async fn wait_for_request(remote: &Rc<Remote>) {
    poll_fn(|cx| {
        if remote.standing.get() == Standing::Closed || remote.has_waiting() {
            return Poll::Ready(());
        }
        remote.set_keeper(cx.waker().clone());
        Poll::Pending
    })
    .await;
}

/// Whether an export can take the place of the one that the device began with.
fn same(remote: &Rc<Remote>, entered: &Entered) -> Result<(), NbdError> {
    let offer = &remote.offer;
    let changed = |what| Err(NbdError::Changed { uri: remote.uri.clone(), what });
    let abilities = TransmissionFlags::SEND_FLUSH
        | TransmissionFlags::SEND_FUA
        | TransmissionFlags::SEND_TRIM
        | TransmissionFlags::SEND_WRITE_ZEROES
        | TransmissionFlags::SEND_FAST_ZERO;
    let needed = TransmissionFlags::from_bits(offer.flags.bits() & abilities.bits());
    if entered.size_bytes != offer.size_bytes {
        changed("size")
    } else if !entered.flags.contains(needed)
        || entered.flags.contains(TransmissionFlags::READ_ONLY) != remote.offers(TransmissionFlags::READ_ONLY)
    {
        changed("set of abilities")
    } else if entered.minimum_bytes > offer.minimum_bytes || entered.maximum_bytes < offer.maximum_bytes {
        changed("block size")
    } else if offer.allocation.is_some() != entered.allocation.is_some() {
        changed("set of metadata contexts")
    } else {
        Ok(())
    }
}
