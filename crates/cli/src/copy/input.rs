//! A copy from standard input, whose length nobody knows beforehand.
//!
//! ```text
//!   read a piece ─▶ zeroes? ─▶ written to each destination in turn ─▶ … end ─▶ durable
//! ```
//!
//! New files grow with what comes; what is there already must be large enough, which shows only when it
//! is full, and keeps what lies behind the last byte. One piece is on its way at a time: a pipe is seldom faster than
//! what it ends in.

use std::io::{Error, Read, Write};
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::time::Duration;

use forebay::{BufferPool, Devices, FileOptions, Reactor};

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

/// Reads until `piece` is full or the input ends.
fn fill(piece: &mut [u8]) -> Result<usize, Error> {
    let mut input = std::io::stdin().lock();
    let mut filled = 0;
    while filled < piece.len() {
        match input.read(&mut piece[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
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
    let mut piece = vec![0; flags.request_size as usize];
    let (begun, mut at) = (reactor.now(), 0);
    loop {
        let filled = fill(&mut piece).map_err(|error| Failure::because("reading standard input", &error))?;
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
