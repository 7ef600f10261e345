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
//! | had a request without reply for too long | sent again | fail: the server may still be at work on them | as above |
//! | brought nonsense | fail | fail | fail |

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

/// Pause after the first failed attempt to reach the server, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
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
            dialled = Box::pin(reconnect(&remote)).await;
        }
        if remote.standing.get() == Standing::Closed {
            return remote.fail_waiting(Errno::SHUTDOWN);
        }
    }
}

/// Starts to use a first connection, and has more of them made where the server takes several. False when
/// the reactor has too much to do for that.
fn bring_up(remote: &Rc<Remote>, dialled: Dialled) -> bool {
    let Some(reactor) = remote.reactor() else { return false };
    let Some(link) = Link::start(remote, &reactor, dialled) else { return false };
    remote.links.borrow_mut().push(Rc::clone(&link));
    remote.standing.set(Standing::Up);
    remote.send_waiting();
    if remote.offers(TransmissionFlags::CAN_MULTI_CONN) && remote.options.connections > 1 {
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
        let current = || remote.links.borrow().first().is_some_and(|link| Rc::ptr_eq(link, &first));
        let link = match dialled {
            Ok(dialled) if remote.standing.get() == Standing::Up && current() && same(&remote, &dialled.entered).is_ok() => {
                Link::start(&remote, &reactor, dialled)
            }
            Ok(_) => return,
            Err(error) => return tracing::debug!("no further connection is made: {error}"),
        };
        let Some(link) = link else { return };
        remote.links.borrow_mut().push(link);
    }
}

/// Waits until a connection ended or the device is closed; ends those that have overdue requests.
async fn watch(remote: &Rc<Remote>) {
    while remote.standing.get() == Standing::Up {
        let Some(reactor) = remote.reactor() else { return };
        let (now, limit) = (reactor.now(), remote.options.reply);
        let oldest = remote.links.borrow().iter().filter_map(|link| link.oldest()).min();
        if oldest.is_some_and(|oldest| now.saturating_sub(oldest) > limit) {
            for link in remote.links.borrow().iter() {
                link.sever(Broken::Silent(limit));
            }
            return;
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

/// Ends all connections and collects what they left; why the first of them ended.
async fn tear_down(remote: &Rc<Remote>) -> Broken {
    let links = remote.links.take();
    let closed = remote.standing.get() == Standing::Closed;
    if !closed {
        remote.standing.set(Standing::Down);
    }
    let why = links.iter().find_map(|link| link.broken());
    let why = why.unwrap_or(if closed { Broken::Closed } else { Broken::Sibling });
    for link in &links {
        link.sever(Broken::Sibling);
    }
    poll_fn(|cx| {
        if links.iter().all(|link| link.is_over()) {
            return Poll::Ready(());
        }
        remote.set_keeper(cx.waker().clone());
        Poll::Pending
    })
    .await;
    let (mut again, mut unsent, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for link in &links {
        let Remains { sent, unsent: never, ended } = link.take_apart();
        remote.ended_early(ended);
        unsent.extend(never);
        for work in sent {
            let fails = match &why {
                Broken::Nonsense(_) => true,
                Broken::Silent(_) => work.changes(),
                Broken::Lost(_) | Broken::ShuttingDown | Broken::Sibling | Broken::Closed => false,
            };
            if fails { failed.push(work) } else { again.push(work) }
        }
    }
    remote.lose(again, unsent);
    let error = if matches!(why, Broken::Silent(_)) { Errno::TIMEDOUT } else { Errno::NOTCONN };
    for work in failed {
        remote.finish(work, error);
    }
    why
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
