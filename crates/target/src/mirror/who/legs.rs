//! Legs of a mirror: sets of them, what went wrong with each, and which one serves a read. Pure.
//!
//! ```text
//!   alive ── write or flush failed, another leg has everything ──▶ out ── revived ──▶ alive
//! ```
//!
//! Invariants:
//! - I1: a leg that is out gets no requests but reads of what it still has, when nobody else can give
//!   them.
//! - I2: an error of a read does not put a leg out; it only makes it the last choice.
//!
//! Sectors are of 512 bytes. The letters are those of the kernel's status line.

/// Most legs of a mirror, as in the kernel.
pub const LEGS_MAX: usize = 9;

/// A read that continues where the one before ended stays on its leg while that has at most so many
/// more reads in flight than the idlest.
const SEQUENTIAL_LEAD_MAX: u32 = 8;

/// Some of a mirror's legs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LegSet(u16);

impl LegSet {
    /// None.
    pub const NONE: Self = Self(0);

    /// The first `count` legs.
    ///
    /// # Panics
    /// When these are more than [`LEGS_MAX`].
    #[must_use]
    pub fn first_of(count: usize) -> Self {
        assert!(count <= LEGS_MAX, "a mirror has at most {LEGS_MAX} legs");
        Self((1 << count) - 1)
    }

    /// One leg.
    ///
    /// # Panics
    /// When its number is not below [`LEGS_MAX`].
    #[must_use]
    pub fn only(leg: usize) -> Self {
        assert!(leg < LEGS_MAX, "a mirror has at most {LEGS_MAX} legs");
        Self(1 << leg)
    }

    /// As it is kept on disk: bit n is leg n. Bits beyond the last leg are dropped.
    #[must_use]
    pub fn from_bits(bits: u16) -> Self {
        Self(bits & ((1 << LEGS_MAX) - 1))
    }

    /// Bit n is leg n.
    #[must_use]
    pub fn bits(self) -> u16 {
        self.0
    }

    /// Whether `leg` is one of them.
    #[must_use]
    pub fn contains(self, leg: usize) -> bool {
        self.0 >> leg & 1 == 1
    }

    /// Those and these.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that are not among these.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Those that are among these.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many.
    #[must_use]
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// The lowest.
    #[must_use]
    pub fn first(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as usize)
    }

    /// All of them, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..LEGS_MAX).filter(move |&leg| self.contains(leg))
    }
}

/// What a leg failed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A flush.
    Flush = 0,
    /// A write.
    Write = 1,
    /// The copying that brings it up to date.
    Resync = 2,
    /// A read.
    Read = 3,
}

#[derive(Clone, Copy, Debug, Default)]
struct Leg {
    /// Bit n: the trouble of that number has happened.
    troubles: u8,
    out: bool,
    /// Somebody knows that it is out, so that nothing is held back because of it.
    accepted: bool,
    reading: u32,
    /// Where its last read ended, sectors.
    next: u64,
}

/// What is known of each leg.
#[derive(Clone, Debug)]
pub struct Legs(Vec<Leg>);

impl Legs {
    /// So many healthy legs.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self(vec![Leg::default(); count])
    }

    /// Every leg.
    #[must_use]
    pub fn all(&self) -> LegSet {
        LegSet::first_of(self.0.len())
    }

    fn filter(&self, keep: impl Fn(&Leg) -> bool) -> LegSet {
        let kept = self.0.iter().enumerate().filter(|(_, leg)| keep(leg));
        kept.fold(LegSet::NONE, |set, (at, _)| set.with(LegSet::only(at)))
    }

    /// Those that take requests.
    #[must_use]
    pub fn alive(&self) -> LegSet {
        self.filter(|leg| !leg.out)
    }

    /// Those without any trouble.
    #[must_use]
    pub fn healthy(&self) -> LegSet {
        self.filter(|leg| !leg.out && leg.troubles == 0)
    }

    /// Those that are out without anybody having said that this is known.
    #[must_use]
    pub fn unaccepted(&self) -> LegSet {
        self.filter(|leg| leg.out && !leg.accepted)
    }

    /// Something went wrong; whether this is new.
    pub fn note(&mut self, leg: usize, trouble: Trouble) -> bool {
        let bit = 1 << trouble as u8;
        let new = self.0[leg].troubles & bit == 0;
        self.0[leg].troubles |= bit;
        new
    }

    /// `leg` gets no more requests.
    pub fn put_out(&mut self, leg: usize) {
        self.0[leg].out = true;
    }

    /// It is known which legs are out.
    pub fn accept(&mut self) {
        for leg in &mut self.0 {
            leg.accepted = leg.out;
        }
    }

    /// All are tried again, as after a start.
    pub fn revive(&mut self) {
        for leg in &mut self.0 {
            (leg.troubles, leg.out, leg.accepted) = (0, false, false);
        }
    }

    /// The letter of a leg in the kernel's status line.
    #[must_use]
    pub fn letter(&self, leg: usize) -> char {
        let Leg { troubles, out, .. } = self.0[leg];
        let had = |trouble: Trouble| troubles >> trouble as u8 & 1 == 1;
        match () {
            () if had(Trouble::Flush) => 'F',
            () if had(Trouble::Write) => 'D',
            () if had(Trouble::Resync) => 'S',
            () if had(Trouble::Read) => 'R',
            () if out => 'U',
            () => 'A',
        }
    }

    /// Which of `good` reads from sector `start` on: where the read before ended there, or else
    /// the one with the fewest reads in flight, and among such the nearest. One with troubles only
    /// when there is no other.
    #[must_use]
    pub fn choose(&self, good: LegSet, start: u64) -> Option<usize> {
        let healthy = good.and(self.healthy());
        let among = if healthy.is_empty() { good } else { healthy };
        let least = among.iter().map(|leg| self.0[leg].reading).min()?;
        let follows = |&leg: &usize| self.0[leg].next == start && self.0[leg].reading <= least + SEQUENTIAL_LEAD_MAX;
        among.iter().find(follows).or_else(|| {
            let idlest = among.iter().filter(|&leg| self.0[leg].reading == least);
            idlest.min_by_key(|&leg| self.0[leg].next.abs_diff(start))
        })
    }

    /// `leg` begins to read `start..end`.
    pub fn read_begins(&mut self, leg: usize, end: u64) {
        self.0[leg].reading += 1;
        self.0[leg].next = end;
    }

    /// A read of `leg` ended.
    pub fn read_ended(&mut self, leg: usize) {
        self.0[leg].reading -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_legs_are_what_their_names_say() {
        let (all, middle) = (LegSet::first_of(3), LegSet::only(1));
        assert_eq!((all.len(), all.first(), LegSet::NONE.first()), (3, Some(0), None));
        assert_eq!(all.without(middle).iter().collect::<Vec<_>>(), [0, 2]);
        assert_eq!(LegSet::only(0).with(LegSet::only(2)), all.without(middle));
        assert_eq!(all.and(middle), middle);
        assert_eq!(LegSet::from_bits(u16::MAX).len(), 9);
    }

    #[test]
    fn reads_go_round_but_a_sequence_stays_where_it_is() {
        let mut legs = Legs::new(2);
        let mut chosen = Vec::new();
        for start in [1000, 2000, 3000, 4000] {
            let leg = legs.choose(legs.all(), start).unwrap();
            legs.read_begins(leg, start + 8);
            chosen.push(leg);
        }
        assert_eq!(chosen.iter().filter(|&&leg| leg == 0).count(), 2, "{chosen:?}");
        let last = *chosen.last().unwrap();
        for start in [4008, 4016, 4024] {
            assert_eq!(legs.choose(legs.all(), start), Some(last));
            legs.read_begins(last, start + 8);
        }
        (0..5).for_each(|_| legs.read_ended(last));
        assert_ne!(legs.choose(legs.all(), 9), Some(1 - last), "the other has more in flight now");
    }

    #[test]
    fn a_leg_with_troubles_is_the_last_choice() {
        let mut legs = Legs::new(3);
        assert!(legs.note(0, Trouble::Read) && !legs.note(0, Trouble::Read));
        assert_ne!(legs.choose(legs.all(), 0), Some(0));
        assert_eq!(legs.choose(LegSet::only(0), 0), Some(0));
        assert_eq!(legs.choose(LegSet::NONE, 0), None);
        legs.put_out(1);
        assert_eq!((legs.alive().bits(), legs.healthy().bits(), legs.unaccepted().bits()), (0b101, 0b100, 0b010));
        legs.accept();
        assert!(legs.unaccepted().is_empty());
        legs.revive();
        assert_eq!(legs.healthy(), legs.all());
    }

    #[test]
    fn letters_name_the_worst() {
        let mut legs = Legs::new(2);
        let mut letters = vec![legs.letter(0)];
        for trouble in [Trouble::Read, Trouble::Resync, Trouble::Write, Trouble::Flush] {
            legs.note(0, trouble);
            letters.push(legs.letter(0));
        }
        assert_eq!((letters, legs.letter(1)), (vec!['A', 'R', 'S', 'D', 'F'], 'A'));
    }
}
