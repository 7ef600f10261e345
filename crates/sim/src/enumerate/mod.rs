//! Every crash of every short script: nothing is left to chance.
//!
//! ```text
//!   script of up to L operations ─▶ at every device step: what a power cut may leave on the disks
//!                                        │ every subset of the writes that are not durable, with tears
//!                                        ▼
//!                                  distinct disks ─▶ recovered once ─▶ held against each script's model
//! ```
//!
//! Invariants:
//! - I1: each script runs twice, with its operations all at once and one after the other; the crash points of
//!   either are all its device steps.
//! - I2: up to [`SUBSETS_WHOLE`] writes that are not durable, all their subsets are tried, and each with one of them
//!   torn in three ways; beyond that the small ones, the large ones and a seeded sample.
//! - I3: disks that are equal are recovered once: recovery depends on nothing else.

mod images;
mod recover;
mod script;
mod sweep;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::check::Model;
use crate::run::Subject;
use crate::world::World;
use crate::{cache, clone, copy, mirror, snapshot};

use recover::Recovered;
use script::{Point, play};

pub use images::SUBSETS_WHOLE;
pub use script::Operation;
pub(crate) use script::{OPERATIONS, SEED};
pub use sweep::{Swept, sweep};

/// A target so small that all its crashes can be tried.
pub struct Tiny {
    /// Disks with their first content.
    pub world: Box<dyn Fn() -> World>,
    /// What is put to the test.
    pub subject: Box<dyn Subject>,
    /// What the device under test holds in the beginning.
    pub model: Model,
    /// Sectors of a block.
    pub block_sectors: usize,
    /// What scripts are made of.
    pub operations: Vec<Operation>,
    /// Whether what a restart finds must be found again once it is drained.
    pub drained_again: bool,
}

impl Tiny {
    /// How many scripts of up to `length` operations there are.
    fn scripts(&self, length: u32) -> u64 {
        (0..=length).map(|length| (self.operations.len() as u64).pow(length)).sum()
    }

    /// Script number `number`: the empty one, then all of one operation, of two, and so on.
    fn script(&self, mut number: u64) -> Vec<Operation> {
        let (mut script, letters) = (Vec::new(), self.operations.len() as u64);
        while number > 0 {
            number -= 1;
            script.push(self.operations[usize::try_from(number % letters).expect("a few letters")]);
            number /= letters;
        }
        script
    }
}

/// Makes what is enumerated in one of its variants; `None` where there is no such variant.
pub type Make = fn(usize) -> Option<Tiny>;

/// What is enumerated.
pub struct Enumerable {
    /// Its name.
    pub name: &'static str,
    /// Makes it.
    pub make: Make,
    /// Operations of a script at most, unless told otherwise: as many as a minute has room for.
    pub length: u32,
}

/// Everything that is enumerated.
pub const SUBJECTS: [Enumerable; 5] = [
    Enumerable { name: "cache", make: cache::tiny, length: 3 },
    Enumerable { name: "mirror", make: mirror::tiny, length: 2 },
    Enumerable { name: "clone", make: clone::tiny, length: 2 },
    Enumerable { name: "copy", make: copy::tiny, length: 0 },
    Enumerable { name: "snapshot", make: snapshot::tiny, length: 2 },
];

/// What was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Runs of scripts.
    pub runs: u64,
    /// Device steps at which the power was cut.
    pub points: u64,
    /// Sets of disks that cuts left.
    pub states: u64,
    /// Different ones among those of one worker.
    pub distinct: u64,
    /// States that held what they may not.
    pub failed: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.points += other.points;
        self.states += other.states;
        self.distinct += other.distinct;
        self.failed += other.failed;
    }
}

/// Failures that are told; more are counted.
const TOLD_MAX: u64 = 10;

/// Tries all scripts of up to `length` operations on variant number `variant` of what `make` makes, with so many
/// threads. Failures are printed. `None` where there is no such variant.
///
/// # Panics
/// When a script does not come to its end in a healthy world.
#[must_use]
pub fn run(make: Make, variant: usize, length: u32, jobs: usize) -> Option<Tally> {
    let scripts = make(variant)?.scripts(length);
    let next = AtomicU64::new(0);
    let total = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                let tiny = make(variant).expect("looked for above");
                let mut worker = Worker { tiny, recovered: Recovered::default(), tally: Tally::default() };
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= scripts {
                        break;
                    }
                    worker.script(number);
                }
                worker.tally.distinct = worker.recovered.distinct();
                total.lock().expect("no worker panics while it adds").add(worker.tally);
            });
        }
    });
    Some(total.into_inner().expect("all workers have ended"))
}

struct Worker {
    tiny: Tiny,
    recovered: Recovered,
    tally: Tally,
}

impl Worker {
    /// Tries all crashes of script number `number`.
    fn script(&mut self, number: u64) {
        let operations = self.tiny.script(number);
        for patient in [false, true] {
            let points = play(&self.tiny, &operations, patient, number == 0);
            self.tally.runs += 1;
            for (step, point) in points.iter().enumerate() {
                self.tally.points += 1;
                if let Err(reason) = self.point(point) {
                    self.tally.failed += 1;
                    if self.tally.failed <= TOLD_MAX {
                        println!("script {number} {operations:?}, patient {patient}, cut at step {step}: {reason}");
                    }
                }
            }
        }
    }

    /// Tries all that a cut at `point` may leave.
    fn point(&mut self, point: &Point) -> Result<(), String> {
        let (mut result, mut states) = (Ok(()), 0);
        images::each(&point.remains, |disks, what| {
            states += 1;
            if result.is_err() {
                return;
            }
            let found = self.recovered.find(&self.tiny, disks);
            result = match found {
                Ok(found) => point.model.allows(found).map_err(|violation| format!("{what}: {violation}")),
                Err(reason) => Err(format!("{what}: {reason}")),
            };
        });
        self.tally.states += states;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crash_of_every_script_of_one_operation_is_survived() {
        for Enumerable { name, make, .. } in SUBJECTS {
            for (variant, tiny) in (0..).map_while(|variant| Some((variant, make(variant)?))) {
                let tally = run(make, variant, 1, 1).expect("it was made in the line before");
                assert_eq!((tally.runs, tally.failed), (2 * tiny.scripts(1), 0), "{name}, variant {variant}: {tally:?}");
                assert!(tally.states > tally.points && tally.distinct > 20, "{name}, variant {variant}: {tally:?}");
            }
        }
    }

    #[test]
    fn every_error_of_the_shortest_scripts_is_survived() {
        for Enumerable { name, make, length } in SUBJECTS {
            for (variant, swept) in (0..).map_while(|variant| Some((variant, sweep(make, variant, length.saturating_sub(2), 1)?)))
            {
                assert_eq!(swept.failed, 0, "{name}, variant {variant}: {swept:?}");
                assert!(swept.again > swept.runs / 2, "{name}, variant {variant}: {swept:?}");
            }
        }
    }
}
