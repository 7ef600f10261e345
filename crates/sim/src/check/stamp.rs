//! What a written sector carries, so that a wrong one names itself.
//!
//! ```text
//!   bytes  0      8         16        24                              512
//!         │ seed │ sector  │ version │ 61 words that follow from them │
//! ```
//!
//! A sector that was put elsewhere shows the wrong position, a stale one an old version, one of
//! another run another seed, and one of which only a part was written does not add up.

/// Bytes of a sector.
pub(crate) const SECTOR: usize = 512;
const WORD: usize = 8;
/// What a sector is filled with before a read, so that one that nobody filled is seen.
pub(crate) const POISON: u8 = 0xA5;

/// What a sector was found to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A whole stamp of this run.
    Stamp {
        /// Where it was written to.
        sector: u64,
        /// By which request.
        version: u32,
    },
    /// Nothing but zeroes.
    Zeroes,
    /// Not what any request wrote.
    Garbage,
}

fn filler(seed: u64, sector: u64, version: u64) -> u64 {
    let mixed = (seed ^ sector.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ version;
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed ^ (mixed >> 32)) | 1
}

fn word(filler: u64, at: usize) -> u64 {
    filler.wrapping_mul(2 * at as u64 + 1)
}

/// Stamps every sector of `bytes`, of which the first goes to `sector`.
pub fn stamp(bytes: &mut [u8], seed: u64, sector: u64, version: u32) {
    for (at, sector_bytes) in bytes.chunks_exact_mut(SECTOR).enumerate() {
        let sector = sector + at as u64;
        let filler = filler(seed, sector, u64::from(version));
        for (at, bytes) in sector_bytes.chunks_exact_mut(WORD).enumerate() {
            let number = match at {
                0 => seed,
                1 => sector,
                2 => u64::from(version),
                at => word(filler, at),
            };
            bytes.copy_from_slice(&number.to_le_bytes());
        }
    }
}

fn read_word(bytes: &[u8], at: usize) -> u64 {
    bytes[at * WORD..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

/// Says what a sector of 512 bytes holds.
#[must_use]
pub fn inspect(bytes: &[u8], seed: u64) -> Found {
    if bytes.iter().all(|&byte| byte == 0) {
        return Found::Zeroes;
    }
    let (sector, version) = (read_word(bytes, 1), read_word(bytes, 2));
    let filler = filler(seed, sector, version);
    let whole = (3..SECTOR / WORD).all(|at| read_word(bytes, at) == word(filler, at));
    match u32::try_from(version) {
        Ok(version) if whole && read_word(bytes, 0) == seed => Found::Stamp { sector, version },
        _ => Found::Garbage,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_names_its_place_and_version_and_a_torn_one_is_garbage() {
        let mut bytes = [0; 2 * SECTOR];
        stamp(&mut bytes, 7, 100, 3);
        assert_eq!(inspect(&bytes[SECTOR..], 7), Found::Stamp { sector: 101, version: 3 });
        assert_eq!(inspect(&bytes[..SECTOR], 8), Found::Garbage);
        let mut other = [0; SECTOR];
        stamp(&mut other, 7, 100, 4);
        other[256..].copy_from_slice(&bytes[256..SECTOR]);
        assert_eq!(inspect(&other, 7), Found::Garbage);
        assert_eq!(inspect(&[0; SECTOR], 7), Found::Zeroes);
    }
}
