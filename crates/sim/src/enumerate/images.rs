//! All sets of disks that a power cut may leave at one moment.

use fastrand::Rng;

use crate::world::Remains;

/// Writes that are not durable up to which all their subsets are tried.
pub const SUBSETS_WHOLE: usize = 8;
/// Subsets of neither few nor almost all writes that are tried where there are more.
const SAMPLES: usize = 64;
/// How the torn write is torn.
const TEARS: [Tear; 3] = [Tear::Front, Tear::Back, Tear::Comb];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tear {
    /// The first half of its units survives.
    Front,
    /// The second half.
    Back,
    /// Every second unit.
    Comb,
}

impl Tear {
    fn keeps(self, unit: usize, units: usize) -> bool {
        match self {
            Self::Front => unit < units / 2,
            Self::Back => unit >= units / 2,
            Self::Comb => unit % 2 == 1,
        }
    }
}

/// A write that is not durable: which disk, which of its writes, and its units.
struct Victim {
    disk: usize,
    at: usize,
    units: usize,
}

/// Gives each set of disks to `try_it`, with what it is.
pub(super) fn each(remains: &[Remains], mut try_it: impl FnMut(&[Vec<u8>], &str)) {
    let pending: Vec<Victim> = remains
        .iter()
        .enumerate()
        .flat_map(|(disk, remains)| (0..remains.pending.len()).map(move |at| Victim { disk, at, units: remains.units(at) }))
        .collect();
    for subset in subsets(pending.len()) {
        let survives = |victim: usize| subset.contains(&victim);
        try_it(&disks(remains, &pending, survives, None), &format!("writes {subset:?} of {} survive", pending.len()));
        let torn = if pending.len() <= SUBSETS_WHOLE { subset.as_slice() } else { &[] };
        for &victim in torn.iter().filter(|&&victim| pending[victim].units > 1) {
            for tear in TEARS {
                let what = format!("writes {subset:?} of {} survive, {victim} of them torn: {tear:?}", pending.len());
                try_it(&disks(remains, &pending, survives, Some((victim, tear))), &what);
            }
        }
    }
}

fn disks(remains: &[Remains], pending: &[Victim], survives: impl Fn(usize) -> bool, torn: Option<(usize, Tear)>) -> Vec<Vec<u8>> {
    let number = |disk, at| pending.iter().position(|victim| (victim.disk, victim.at) == (disk, at)).expect("it is pending");
    let survives = |victim: usize, unit| match torn {
        Some((torn, tear)) if torn == victim => tear.keeps(unit, pending[victim].units),
        _ => survives(victim),
    };
    remains.iter().enumerate().map(|(disk, remains)| remains.after(|at, unit| survives(number(disk, at), unit))).collect()
}

/// The subsets of so many writes that are tried.
fn subsets(count: usize) -> Vec<Vec<usize>> {
    if count <= SUBSETS_WHOLE {
        return (0..1_usize << count).map(|mask| (0..count).filter(|at| mask >> at & 1 == 1).collect()).collect();
    }
    let mut few = vec![Vec::new()];
    few.extend((0..count).map(|one| vec![one]));
    few.extend((0..count).flat_map(|one| (one + 1..count).map(move |other| vec![one, other])));
    let but = |left_out: &Vec<usize>| (0..count).filter(|at| !left_out.contains(at)).collect::<Vec<_>>();
    let many: Vec<_> = few.iter().map(but).collect();
    let mut rng = Rng::with_seed(count as u64);
    let samples = (0..SAMPLES).map(|_| (0..count).filter(|_| rng.bool()).collect());
    few.into_iter().chain(many).chain(samples).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_writes_have_all_their_subsets_and_many_the_small_the_large_and_some() {
        for count in 0..=SUBSETS_WHOLE {
            let mut all = subsets(count);
            all.sort();
            all.dedup();
            assert_eq!(all.len(), 1 << count);
        }
        let many = subsets(20);
        assert_eq!(many.len(), 2 * (1 + 20 + 190) + SAMPLES);
        assert!(many.iter().flatten().all(|&at| at < 20));
    }
}
