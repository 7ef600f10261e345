//! The store of a snapshot with any bytes in it.
//!
//! The input is three bytes that choose the size of a chunk, how many entries come and how many go, one that chooses
//! which writes a cut leaves, then the header and the areas.
//! Laws: nothing panics, an entry that counts is inside the device, over no metadata, and alone; the map holds what the
//! list says; a commit adds its entries, and cut off adds the first of them; a retreat leaves those that are kept, and
//! cut off at least those.
#![no_main]

use forebay_target::snapshot::disk::round::{plan, retreat};
use forebay_target::snapshot::disk::{Exception, Header, Layout, List, Piece, Position};
use forebay_target::snapshot::map::ExceptionMap;
use libfuzzer_sys::fuzz_target;

/// Areas of the device.
const AREAS: u64 = 6;

/// What stands in the areas, one behind the other.
fn read(layout: Layout, areas: &[u8]) -> Option<(Vec<Exception>, bool)> {
    let mut list = List::new(layout, layout.area_chunk(AREAS));
    for area in areas.chunks(layout.chunk_bytes() as usize) {
        list.feed(area).ok()?;
    }
    let unclean = list.is_unclean();
    Some((list.finish().ok()?, unclean))
}

/// Writes a piece, which lies in one area.
fn write(layout: Layout, areas: &mut [u8], piece: &Piece) {
    let (chunk, inside) = (piece.offset / layout.chunk_bytes(), piece.offset % layout.chunk_bytes());
    let area = (chunk - 1) / (layout.area_entries() + 1);
    assert_eq!(layout.area_chunk(area), chunk, "metadata is written into areas");
    let at = (area * layout.chunk_bytes() + inside) as usize;
    let mut bytes = vec![0; piece.bytes as usize];
    for (place, entry) in bytes.chunks_exact_mut(16).zip(&piece.entries) {
        place.copy_from_slice(&entry.encode());
    }
    areas[at..at + bytes.len()].copy_from_slice(&bytes);
}

fuzz_target!(|data: &[u8]| {
    let Some((&[size, come, go, cut], data)) = data.split_first_chunk::<4>() else { return };
    let Some((header, data)) = data.split_first_chunk::<16>() else { return };
    if let Ok(Some(known)) = Header::decode(header) {
        assert_eq!(Header::decode(&known.encode()), Ok(Some(known)));
    }
    let layout = Layout::new(1 << (size % 4));
    let block = layout.chunk_bytes().min(1024);
    let mut areas = vec![0; (AREAS * layout.chunk_bytes()) as usize];
    let length = data.len().min(areas.len());
    areas[..length].copy_from_slice(&data[..length]);
    let Some((entries, _)) = read(layout, &areas) else { return };
    let mut map = ExceptionMap::default();
    for &entry in &entries {
        assert!(layout.check(0, entry, layout.area_chunk(AREAS)).is_ok() && map.insert(entry));
    }
    assert!(entries.iter().all(|entry| map.get(entry.old) == Some(entry.new)) && map.len() == entries.len() as u64);

    // As who opens the store: zeroes behind the list.
    areas[entries.len() * 16..].fill(0);
    let per_area = layout.area_entries();
    let position = Position { area: entries.len() as u64 / per_area, filled: entries.len() as u64 % per_area };
    let tail_length = position.filled as usize % (block as usize / 16);
    let tail = &entries[entries.len() - tail_length..];
    let free_new = (2..).filter(|&new| !layout.is_metadata(new) && entries.iter().all(|entry| entry.new != new));
    let free_old = (0..).filter(|&old| map.get(old).is_none());
    let fresh = free_old.zip(free_new).map(|(old, new)| Exception { old, new });
    let room = (AREAS * per_area) as usize - entries.len();
    let fresh: Vec<Exception> = fresh.take((1 + usize::from(come)).min(room.saturating_sub(1))).collect();
    if fresh.is_empty() {
        return;
    }
    let all: Vec<Exception> = entries.iter().chain(&fresh).copied().collect();
    let round = plan(layout, block, position, tail, &fresh);
    let mut torn = areas.clone();
    for (at, piece) in round.pieces.iter().enumerate() {
        write(layout, &mut areas, piece);
        if cut >> (at % 8) & 1 == 1 {
            write(layout, &mut torn, piece);
        }
    }
    assert_eq!(read(layout, &areas), Some((all.clone(), false)));
    let (found, _) = read(layout, &torn).expect("a cut leaves a list");
    assert!(found.len() >= entries.len() && all.starts_with(&found));

    let kept = &all[..usize::from(go).min(all.len() - 1)];
    let back = retreat(layout, block, round.position, kept);
    for piece in &back.pieces {
        write(layout, &mut areas, piece);
        let (found, _) = read(layout, &areas).expect("a cut leaves a list");
        assert!(found.len() >= kept.len() && all.starts_with(&found));
    }
    assert_eq!(read(layout, &areas), Some((kept.to_vec(), false)));
    for entry in &entries {
        map.remove(entry.old);
    }
    assert!(map.is_empty());
});
