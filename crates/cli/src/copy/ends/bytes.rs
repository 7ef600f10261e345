//! Bytes of a device that are no whole blocks.

use std::io::Error;
use std::rc::Rc;

use forebay::block::{Bio, HeapMemory, Sector, Segments, Target, call};

use crate::copy::words;

/// So many bytes, which are a piece at most.
pub(super) fn short(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a piece fits memory")
}

/// The first logical block that holds byte `at`, and how many bytes of whole ones hold all.
fn blocks(target: &dyn Target, at: u64, bytes: usize) -> (u64, usize) {
    let block = u64::from(target.limits().logical_bytes);
    let start = at - at % block;
    (start, short((at + bytes as u64).next_multiple_of(block) - start))
}

fn memory(target: &dyn Target, bytes: usize) -> Result<(Rc<Segments>, u32), Error> {
    let align = target.limits().memory_align.max(4096) as usize;
    let length = u32::try_from(bytes).map_err(Error::other)?;
    Ok((Segments::whole(Box::new(HeapMemory::new(bytes, align)), length).map_err(Error::other)?, length))
}

async fn read_whole(target: &dyn Target, start: u64, bytes: usize) -> Result<Vec<u8>, Error> {
    let (mut memory, length) = memory(target, bytes)?;
    let status = call(target, Bio::read(Sector(start / 512), Rc::clone(&memory), 0, length)).await.status();
    if !status.is_ok() {
        return Err(Error::other(words(status)));
    }
    Ok(Rc::get_mut(&mut memory).expect("the request is over").bytes_mut().to_vec())
}

/// Reads bytes wherever they lie in their blocks.
pub(super) async fn read_at(target: &dyn Target, at: u64, bytes: &mut [u8]) -> Result<(), Error> {
    let (start, length) = blocks(target, at, bytes.len());
    let whole = read_whole(target, start, length).await?;
    let skip = short(at - start);
    bytes.copy_from_slice(&whole[skip..skip + bytes.len()]);
    Ok(())
}

/// Writes bytes wherever they lie in their blocks: what is beside them stays.
pub(super) async fn write_at(target: &dyn Target, at: u64, bytes: &[u8]) -> Result<(), Error> {
    let (start, length) = blocks(target, at, bytes.len());
    if (start + length as u64) / 512 > target.sectors().0 {
        return Err(Error::other(format!("it is full after {} bytes: make it larger", target.sectors().to_bytes())));
    }
    let (mut memory, size) = memory(target, length)?;
    let skip = short(at - start);
    let block = short(u64::from(target.limits().logical_bytes));
    // The first and the last block keep what is not given.
    for place in [0, length - block].into_iter().take(length / block) {
        let given = skip <= place && place + block <= skip + bytes.len();
        if !given {
            let kept = read_whole(target, start + place as u64, block).await?;
            let memory = Rc::get_mut(&mut memory).expect("nobody else has it yet").bytes_mut();
            memory[place..place + block].copy_from_slice(&kept);
        }
    }
    let filled = Rc::get_mut(&mut memory).expect("nobody else has it yet").bytes_mut();
    filled[skip..skip + bytes.len()].copy_from_slice(bytes);
    let status = call(target, Bio::write(Sector(start / 512), memory, 0, size)).await.status();
    if status.is_ok() { Ok(()) } else { Err(Error::other(words(status))) }
}
