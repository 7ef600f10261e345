//! Copies an image onto a stack, and reads it back to be sure: `image_copy IMAGE TABLE`.
//!
//! ```text
//!   IMAGE ── read ──▶ payload ─▶ stack.write ─▶ … ─▶ devices      16 in flight, each payload used again
//!   IMAGE ── read ──▶ compare ◀── disk.read ◀─ … ◀── devices      blocking
//! ```
//!
//! For example: `image_copy debian.img '0 8388608 writecache s slow.img fast.img 4096 0'`.
//!
//! A start for programs of your own: opening, several requests in flight, flush, status, close, and
//! the blocking face for those who need no async.

use std::collections::VecDeque;
use std::error::Error;
use std::fs::File;
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;

use forebay::block::Sector;
use forebay::{BufferPool, Disk, Engine, Payload, Reactor, Stack, engine};

/// Segments of a request, bytes: a small and a large one.
const SEGMENTS: [u32; 2] = [4096, 252 << 10];
/// Bytes of a request.
const CHUNK: u64 = 256 << 10;
/// Requests in flight.
const DEPTH: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [image, table] = arguments.as_slice() else { return Err("usage: image_copy IMAGE TABLE".into()) };
    let image = File::open(image)?;
    let bytes = image.metadata()?.len();
    if bytes == 0 || !bytes.is_multiple_of(CHUNK) {
        return Err("the image must be a multiple of 256 KiB".into());
    }
    copy(&image, bytes, table)?;
    println!("{bytes} bytes copied");
    if !table.contains("ram:") {
        compare(&image, bytes, table)?;
        println!("and found again");
    }
    Ok(())
}

/// Copies the image, with several requests in flight.
fn copy(image: &File, bytes: u64, table: &str) -> Result<(), Box<dyn Error>> {
    let reactor = Reactor::new(engine(Engine::Auto)?);
    let pool = BufferPool::new(&reactor);
    let copying = async {
        let stack = Stack::open(&reactor, &pool, "copy", table).await?;
        let mut flying = VecDeque::new();
        for at in (0..bytes).step_by(256 << 10) {
            // The oldest request gives its payload to the next.
            let mut payload = if flying.len() < DEPTH {
                Payload::of(&pool, &SEGMENTS)?
            } else {
                let oldest: forebay::Transfer = flying.pop_front().ok_or("a full queue has a first")?;
                let (written, payload) = oldest.await;
                written?;
                payload
            };
            let mut place = at;
            for index in 0..payload.segments() {
                let segment = payload.segment_mut(index).ok_or("counted just now")?;
                image.read_exact_at(segment, place)?;
                place += segment.len() as u64;
            }
            flying.push_back(stack.write(Sector(at / 512), payload));
        }
        for request in flying {
            request.await.0?;
        }
        stack.flush().await?;
        for device in stack.status().devices {
            println!("{}: {} bios in {} requests", device.name, device.counts.bios, device.counts.requests);
        }
        stack.close().await?;
        Ok(())
    };
    let copied = reactor.run(copying)?;
    reactor.clear();
    copied
}

/// Reads everything back and compares, one blocking call after the other.
fn compare(image: &File, bytes: u64, table: &str) -> Result<(), Box<dyn Error>> {
    let disk = Disk::open(table)?;
    // Files are read past the page cache, into memory that is aligned for that.
    let mut found = Payload::of(disk.pool(), &SEGMENTS)?;
    let mut expected = vec![0; usize::try_from(CHUNK)?];
    for at in (0..bytes).step_by(256 << 10) {
        disk.read_payload(Sector(at / 512), &mut found)?;
        image.read_exact_at(&mut expected, at)?;
        if found.to_vec() != expected {
            return Err(format!("the copy differs between bytes {at} and {}", at + CHUNK).into());
        }
    }
    // A caller's own memory does as well, where it is aligned as the disk asks for.
    if disk.limits().memory_align == 1 {
        disk.read(Sector(0), &mut [IoSliceMut::new(&mut expected)])?;
    }
    disk.close()?;
    Ok(())
}
