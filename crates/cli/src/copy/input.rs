//! A copy from standard input, whose length nobody knows beforehand.
//!
//! ```text
//!   a thread: read a piece, and the next, … ──▶ zeroes? ─▶ written to each destination in turn ─▶ … end ─▶ durable
//! ```
//!
//! New files grow with what comes; what is there already must be large enough, which shows only when it
//! is full, and keeps what lies behind the last byte. Pieces are whole blocks of all destinations. While one is written,
//! the next ones are read.

use std::collections::VecDeque;
use std::io::{Error, Read, Write};
use std::mem::ManuallyDrop;
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use forebay::block::Target;
use forebay::{BufferPool, Devices, FileOptions, Reactor};
use forebay_reactor::Helper;
use forebay_reactor::mailbox::Mailbox;

use super::bar::Bar;
use super::ends::{self, Destination, End, Opening, Source};
use super::stream::{Hash, Take, why};
use crate::failure::{Failure, Outcome, say};
use crate::flags::CopyFlags;

/// Whether zeroes need not be written to `to`.
fn is_sparse(to: &Destination, flags: &CopyFlags) -> bool {
    (to.made || flags.destination_is_zero) && !flags.allocated && flags.sparse > 0 && to.end != End::Stream
}

/// Gives `bytes`, which belong to `at`, to a destination.
async fn give(to: &Destination, at: u64, bytes: &[u8], skip: bool) -> Result<(), Error> {
    match to.room() {
        Some(room) if at + bytes.len() as u64 > room => {
            Err(Error::other(format!("it is full after {room} bytes: make it larger")))
        }
        _ if skip => Ok(()),
        _ if to.end == End::Stream => std::io::stdout().lock().write_all(bytes),
        _ => to.write_bytes(at, bytes).await,
    }
}

/// Everything has come: `bytes` in all.
async fn end(to: &Destination, bytes: u64) -> Result<(), Failure> {
    let failed = |error| Failure::because(format!("ending {}", to.name), &error);
    if let Some(file) = to.file.as_ref().filter(|_| to.made) {
        file.set_len(bytes).map_err(failed)?;
    }
    if to.end == End::Stream {
        std::io::stdout().flush().map_err(failed)?;
    }
    to.sync().await
}

/// Pieces on their way: one is written while the others are read or wait for that.
const PIECES: usize = 3;

/// A piece, and how many bytes of it came: fewer than it has room for at the end only.
type Piece = (Vec<u8>, Result<usize, Error>);

/// Reads until `piece` is full or the input ends.
fn fill(mut piece: Vec<u8>) -> Piece {
    let mut input = std::io::stdin().lock();
    let mut filled = 0;
    while filled < piece.len() {
        match input.read(&mut piece[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return (piece, Err(error)),
        }
    }
    (piece, Ok(filled))
}

/// Standard input, read ahead by a thread.
struct Input<'a> {
    reactor: &'a Reactor,
    /// Never dropped: that would wait for input that may not come. The thread ends with the process.
    thread: ManuallyDrop<Helper<Vec<u8>, Piece>>,
    ahead: VecDeque<Mailbox<Piece>>,
}

impl<'a> Input<'a> {
    fn new(reactor: &'a Reactor, piece_bytes: usize) -> Result<Self, Failure> {
        let thread = ManuallyDrop::new(Helper::new("forebay-input"));
        let mut input = Self { reactor, thread, ahead: VecDeque::new() };
        for _ in 0..PIECES {
            input.read_into(vec![0; piece_bytes])?;
        }
        Ok(input)
    }

    /// Has a piece read, behind those that are being read.
    fn read_into(&mut self, piece: Vec<u8>) -> Result<(), Failure> {
        let asked = self.thread.ask(self.reactor, piece, || Ok(fill));
        self.ahead.push_back(asked.map_err(|error| not_read(&error))?);
        Ok(())
    }

    /// The next piece.
    async fn next(&mut self) -> Result<(Vec<u8>, usize), Failure> {
        let mut place = self.ahead.pop_front().expect("a piece is given back before the next one is asked for");
        let (piece, filled) = place.receive().await.ok_or_else(|| not_read(&Error::other("the thread that reads it is gone")))?;
        Ok((piece, filled.map_err(|error| not_read(&error))?))
    }
}

fn not_read(error: &Error) -> Failure {
    Failure::because("reading standard input", error)
}

/// Size of a piece for requests of `request` bytes: whole blocks of all `targets`.
fn piece_bytes<'a>(request: u32, targets: impl Iterator<Item = &'a Rc<dyn Target>>) -> usize {
    // Blocks are powers of two, so that the largest is a multiple of all.
    let block = targets.map(|target| target.limits().logical_bytes).max().unwrap_or(1);
    request.next_multiple_of(block) as usize
}

/// When `bytes` may have come at `rate`.
fn due(bytes: u64, rate: NonZeroU64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.get());
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Copies standard input.
pub async fn copy(reactor: &Reactor, pool: &BufferPool, flags: &CopyFlags) -> Outcome {
    let words: Vec<&str> = flags.destinations.iter().map(String::as_str).collect();
    let devices = Devices::new(reactor, FileOptions::default()).with_connections(flags.connections.get().into());
    let devices = Box::pin(ends::connect(devices, pool, &[], &words)).await?;
    let looked = ends::look_at(&flags.destinations, &Source::stdin(), None)?;
    let how = Opening { devices: &devices, reactor, bytes: None, allocate: false };
    let destinations = ends::open_all(looked, how)?;
    let mut hash = flags.checksum.then(Hash::default);
    let mut bar = Bar::new(flags.progress);
    let targets = destinations.iter().filter_map(|to| to.target.as_ref());
    let mut input = Input::new(reactor, piece_bytes(flags.request_size, targets))?;
    let (begun, mut at) = (reactor.now(), 0);
    loop {
        let (piece, filled) = input.next().await?;
        let bytes = &piece[..filled];
        let zero = bytes.iter().all(|&byte| byte == 0);
        for to in destinations.iter().filter(|_| filled > 0) {
            let failed = |error: Error| Failure::Failed(format!("writing {} at {at} failed: {}", to.name, why(&error)));
            give(to, at, bytes, zero && is_sparse(to, flags)).await.map_err(failed)?;
        }
        if let Some(hash) = &mut hash {
            hash.take(bytes).map_err(|error| Failure::because("hashing", &error))?;
        }
        at += filled as u64;
        let ended = filled < piece.len();
        if let Some(bar) = &mut bar {
            bar.draw_open(at, ended, reactor.now().saturating_sub(begun));
        }
        if ended {
            break;
        }
        if let Some(rate) = flags.rate {
            reactor.sleep_until(begun.saturating_add(due(at, rate))).await;
        }
        input.read_into(piece)?;
    }
    if let Some(bar) = bar {
        bar.end();
    }
    for to in &destinations {
        end(to, at).await?;
    }
    if let Some(hash) = hash {
        say(&format!("{}  -\n", hash.text()))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use forebay::block::SectorCount;
    use forebay::{Engine, engine};
    use forebay_device::RamDevice;

    use super::*;

    #[test]
    fn pieces_are_whole_blocks_of_all_destinations() {
        let reactor = Reactor::new(engine(Engine::Threads).unwrap());
        let disk: Rc<dyn Target> = RamDevice::new(&reactor, SectorCount(8)).unwrap();
        assert_eq!(disk.limits().logical_bytes, 512);
        assert_eq!(piece_bytes(5000, std::iter::once(&disk)), 5120);
        assert_eq!(piece_bytes(5120, [&disk, &disk].into_iter()), 5120);
        assert_eq!(piece_bytes(5000, std::iter::empty()), 5000);
    }
}
