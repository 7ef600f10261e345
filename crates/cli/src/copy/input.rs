//! A copy from standard input, whose length nobody knows beforehand.
//!
//! ```text
//!   read a piece ─▶ zeroes? ─▶ written to each destination in turn ─▶ … end ─▶ durable
//! ```
//!
//! New files grow with what comes; what is there already must be large enough, which shows only when it
//! is full. One piece is on its way at a time: a pipe is seldom faster than what it ends in.

use std::fs::File;
use std::io::{Error, Read, Write};
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::rc::Rc;

use forebay::block::{Bio, HeapMemory, Sector, SectorCount, Segments, Status, Target, call};
use forebay::{BufferPool, DeviceName, Devices, FileOptions, Reactor};

use super::ends::{self, Destination, End};
use super::stream::{Hash, Take, why};
use crate::failure::{Failure, Outcome, say};
use crate::flags::CopyFlags;

/// Where a piece goes.
enum Sink {
    /// A file or block device; its room, unless it grows, and whether zeroes may be left out.
    File {
        file: File,
        room: Option<u64>,
        sparse: bool,
    },
    Device(Rc<dyn Target>),
    Output,
    Nowhere,
}

struct Taker {
    sink: Sink,
    to: Destination,
}

impl Taker {
    fn open(devices: &Devices, word: &str, flags: &CopyFlags) -> Result<Self, Failure> {
        let end = End::parse(word)?;
        let to = Destination::look(&end, word, 0)?;
        let sink = match &end {
            End::Stream => Sink::Output,
            End::Nowhere => Sink::Nowhere,
            End::Device(name) => Sink::Device(device(devices, name)?),
            End::Path(path) => {
                let failed = |error| Failure::because(format!("opening {word}"), &error);
                let file = File::options().write(true).create(to.made).truncate(false).open(path).map_err(failed)?;
                let room = to.seen.filter(|_| !to.made).map(|seen| seen.bytes);
                let zero = to.made || flags.destination_is_zero;
                Sink::File { file, room, sparse: zero && !flags.allocated && flags.sparse > 0 }
            }
        };
        Ok(Self { sink, to })
    }

    /// Takes `bytes`, which belong to `at`.
    async fn take(&self, at: u64, bytes: &[u8], zero: bool) -> Result<(), Error> {
        match &self.sink {
            Sink::Nowhere => Ok(()),
            Sink::Output => std::io::stdout().lock().write_all(bytes),
            Sink::File { room: Some(room), .. } if at + bytes.len() as u64 > *room => {
                Err(Error::other(format!("it is full after {room} bytes: make it larger")))
            }
            Sink::File { sparse: true, .. } if zero => Ok(()),
            Sink::File { file, .. } => file.write_all_at(bytes, at),
            Sink::Device(target) => write_padded(&**target, at, bytes).await,
        }
    }

    /// Everything has come: `bytes` in all.
    async fn end(&self, bytes: u64) -> Result<(), Failure> {
        let failed = |error| Failure::because(format!("ending {}", self.to.name), &error);
        match &self.sink {
            Sink::File { file, room, .. } => {
                if room.is_none() {
                    file.set_len(bytes).map_err(failed)?;
                }
                file.sync_all().map_err(failed)?;
            }
            Sink::Device(target) => {
                let status = call(&**target, Bio::flush()).await.status();
                if !status.is_ok() {
                    return Err(failed(Error::other(super::words(status))));
                }
            }
            Sink::Output => std::io::stdout().flush().map_err(failed)?,
            Sink::Nowhere => {}
        }
        match &self.to.path {
            Some(path) if self.to.made => ends::sync_folder(path).map_err(failed),
            _ => Ok(()),
        }
    }
}

fn device(devices: &Devices, name: &DeviceName) -> Result<Rc<dyn Target>, Failure> {
    devices.target(name, false).map_err(|error| Failure::of(&error))
}

/// Writes `bytes` at `at`, which is a multiple of a piece; zeroes follow up to the end of a block.
async fn write_padded(target: &dyn Target, at: u64, bytes: &[u8]) -> Result<(), Error> {
    let limits = target.limits();
    let length = (bytes.len() as u64).next_multiple_of(u64::from(limits.logical_bytes));
    if at / 512 + length / 512 > target.sectors().0 {
        let SectorCount(sectors) = target.sectors();
        return Err(Error::other(format!("it is full after {} bytes: make it larger", sectors * 512)));
    }
    let size = usize::try_from(length).map_err(Error::other)?;
    let short = u32::try_from(length).map_err(Error::other)?;
    let mut memory =
        Segments::whole(Box::new(HeapMemory::new(size, limits.memory_align.max(4096) as usize)), short).map_err(Error::other)?;
    if let Some(memory) = Rc::get_mut(&mut memory) {
        memory.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    }
    match call(target, Bio::write(Sector(at / 512), memory, 0, short)).await.status() {
        Status::Ok => Ok(()),
        status => Err(Error::other(super::words(status))),
    }
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

/// Copies standard input.
pub async fn copy(reactor: &Reactor, pool: &BufferPool, flags: &CopyFlags) -> Outcome {
    let words: Vec<&str> = flags.destinations.iter().map(String::as_str).collect();
    let devices = Devices::new(reactor, FileOptions::default()).with_connections(flags.connections.get().into());
    let devices = Box::pin(ends::connect(devices, pool, &[], &words)).await?;
    let open = |word: &String| Taker::open(&devices, word, flags);
    let takers = flags.destinations.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let mut hash = flags.checksum.then(Hash::default);
    let mut piece = vec![0; flags.request_size as usize];
    let mut at = 0;
    loop {
        let filled = fill(&mut piece).map_err(|error| Failure::because("reading standard input", &error))?;
        let bytes = &piece[..filled];
        let zero = bytes.iter().all(|&byte| byte == 0);
        for taker in takers.iter().filter(|_| filled > 0) {
            let failed = |error: Error| Failure::Failed(format!("writing {} at {at} failed: {}", taker.to.name, why(&error)));
            taker.take(at, bytes, zero).await.map_err(failed)?;
        }
        if let Some(hash) = &mut hash {
            hash.take(bytes).map_err(|error| Failure::because("hashing", &error))?;
        }
        at += filled as u64;
        if filled < piece.len() {
            break;
        }
    }
    for taker in &takers {
        taker.end(at).await?;
    }
    if let Some(hash) = hash {
        say(&format!("{}  -\n", hash.text()))?;
    }
    Ok(ExitCode::SUCCESS)
}
