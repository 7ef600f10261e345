//! The journal of a copy with any bytes in it.
//!
//! The input is two bytes that choose a bit, then the journal. Laws: nothing panics, what is settled is whole sectors
//! inside of the copy, of two slots the one with the higher number counts whatever the other is, and a slot with a bit
//! changed is none.
#![no_main]

use forebay_target::copy::{Found, Settled};
use libfuzzer_sys::fuzz_target;

/// What one block of the journal says by itself.
fn alone(block: &[u8]) -> Option<Settled> {
    match Found::decode(block) {
        Found::Journal(state) => Some(state),
        Found::Nothing | Found::Other => None,
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((chosen, journal)) = data.split_first_chunk::<2>() else { return };
    let (first, rest) = journal.split_at(journal.len().min(4096));
    let second = &rest[..rest.len().min(4096)];
    let slots = [alone(first), alone(second)];
    match Found::decode(journal) {
        Found::Nothing => assert!(journal.iter().all(|&byte| byte == 0)),
        Found::Other => assert!(slots == [None; 2] && journal.iter().any(|&byte| byte != 0)),
        Found::Journal(state) => {
            assert!(state.settled <= state.bytes && state.settled % 512 == 0);
            assert_eq!(Some(state.number), slots.iter().flatten().map(|slot| slot.number).max());
            assert!(slots.contains(&Some(state)));
        }
    }
    for (block, _) in [first, second].iter().zip(slots).filter(|(_, slot)| slot.is_some()) {
        let (mut changed, bit) = (block.to_vec(), usize::from(u16::from_le_bytes(*chosen)) % (64 * 8));
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(alone(&changed), None, "bit {bit}");
    }
});
