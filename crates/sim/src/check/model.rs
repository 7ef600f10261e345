//! What each sector may hold, from the history of requests.
//!
//! A version is *buried* by another that was issued after the first was answered, once that other
//! one counts: for a read, when it was acknowledged before the read was issued; for a crash, when
//! it is durable. Every version that is not buried may be found.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use super::Violation;
use super::history::{Act, History, OpId, Tick};
use super::stamp::{Found, SECTOR, inspect};
use crate::world::Cut;

/// Zeroes were written.
const ZEROES: u32 = u32::MAX;
/// Trimmed: zeroes, or anything ever written here.
const ANY: u32 = u32::MAX - 1;
/// Bits of a version that are the number of its request; those above are the model's.
const REQUEST_BITS: u32 = 22;
/// Versions of a sector beyond which buried ones are dropped.
const VERSIONS_MANY: usize = 6;

/// One version of a sector: who put it there and when, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) op: u32,
    content: u32,
}

/// What every sector of a device may hold.
#[derive(Clone)]
pub struct Model {
    seed: u64,
    /// What the versions of this model have in their upper bits.
    mark: u32,
    initial_zeroes: bool,
    /// What it held in the beginning, where that is no stamps.
    initial: Option<Rc<[u8]>>,
    /// Sectors of a view: what lies behind them are other views of the same device.
    view: usize,
    pub(crate) history: History,
    sectors: Vec<Vec<Version>>,
    seen: Vec<Option<Found>>,
    seen_after: Cut,
    changed: bool,
    groups: Groups,
    /// When everything was observed and settled last.
    pub(crate) settled: Tick,
}

/// Whether groups were atomic since the last state that is known to be durable.
#[derive(Clone, Copy, Default)]
struct Groups {
    block_sectors: Option<usize>,
    broken: bool,
}

impl Model {
    /// A device of `sectors` whose content is stamped with version 0, or zeroes.
    #[must_use]
    pub fn new(seed: u64, sectors: usize, initial_zeroes: bool) -> Self {
        Self {
            seed,
            mark: 0,
            initial_zeroes,
            initial: None,
            view: sectors,
            history: History::new(sectors),
            sectors: vec![vec![Version { op: 0, content: 0 }]; sectors],
            seen: vec![None; sectors],
            seen_after: Cut::Power,
            changed: false,
            groups: Groups::default(),
            settled: 0,
        }
    }

    /// A device that holds `content`, whoever wrote that: it counts as version 0. What is trimmed may show anything.
    #[must_use]
    pub fn of_content(seed: u64, content: Vec<u8>) -> Self {
        let sectors = content.len() / SECTOR;
        Self { initial: Some(content.into()), ..Self::new(seed, sectors, false) }
    }

    /// The model of several views of a device of `sectors`, one behind the other: a sector may hold what was
    /// written to it in any of them, as far as its versions say so.
    #[must_use]
    pub fn of_views(self, sectors: usize) -> Self {
        Self { view: sectors, ..self }
    }

    /// A device of its own that begins as this one is, which has settled and is at rest. The `number`
    /// tells its writes from those of all other models of the seed.
    ///
    /// # Panics
    /// When there are more than a thousand models.
    #[must_use]
    pub fn branch(&self, number: u32) -> Self {
        assert!(number > 0 && number < 1 << (31 - REQUEST_BITS), "a seed has few models");
        let newest = |versions: &Vec<Version>| {
            let content = versions.last().expect("a sector has a version").content;
            vec![Version { op: 0, content }]
        };
        let sectors: Vec<_> = self.sectors.iter().map(newest).collect();
        Self { mark: number << REQUEST_BITS, sectors, ..Self::new(self.seed, self.len(), self.initial_zeroes) }
    }

    /// The version that a write stamps into its sectors.
    #[must_use]
    pub fn version_of(&self, op: OpId) -> u32 {
        op.0 | self.mark
    }

    /// Size in sectors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sectors.len()
    }

    /// Whether it has no sectors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sectors.is_empty()
    }

    /// A request is issued. A write must be stamped with the number that this returns.
    pub fn begin(&mut self, act: Act, sectors: Range<usize>) -> OpId {
        let op = self.history.begin(act, sectors.clone());
        let content = match act {
            Act::Write { .. } => self.version_of(op),
            Act::Zeroes => ZEROES,
            Act::Trim => ANY,
            Act::Read | Act::Flush | Act::Restart { .. } => return op,
        };
        self.changed = true;
        for sector in sectors {
            self.sectors[sector].push(Version { op: op.0, content });
            if self.sectors[sector].len() > VERSIONS_MANY {
                self.prune(sector);
            }
        }
        op
    }

    /// A request is answered.
    pub fn end(&mut self, op: OpId, ok: bool) {
        self.history.end(op, ok);
    }

    /// Drops versions that neither a crash nor a read in flight can bring back.
    fn prune(&mut self, sector: usize) {
        let (history, versions) = (&self.history, &mut self.sectors[sector]);
        let oldest_read = history.oldest_read();
        let bar = bar(history, versions, |op| {
            let record = history.record(op);
            history.is_durable(record) && record.ended < oldest_read
        });
        versions.retain(|version| history.record(version.op).ended >= bar);
    }

    /// Checks what a successful read returned; called before [`Model::end`].
    ///
    /// # Errors
    /// The first sector that holds what it may not.
    pub fn check_read(&self, op: OpId, bytes: &[u8]) -> Result<(), Violation> {
        let record = self.history.record(op.0);
        for (sector, bytes) in record.sectors.clone().zip(bytes.chunks_exact(SECTOR)) {
            self.check_now(sector, self.look_at(sector, bytes), record.issued)?;
        }
        Ok(())
    }

    /// Checks what `sectors` of a device hold while nothing is in flight.
    ///
    /// # Errors
    /// The first sector that holds what it may not.
    pub fn check_idle(&self, first: usize, bytes: &[u8]) -> Result<(), Violation> {
        for (sector, bytes) in (first..).zip(bytes.chunks_exact(SECTOR)) {
            self.check_now(sector, self.look_at(sector, bytes), self.history.now() + 1)?;
        }
        Ok(())
    }

    fn check_now(&self, sector: usize, found: Found, issued: Tick) -> Result<(), Violation> {
        let (history, versions) = (&self.history, &self.sectors[sector]);
        let bar = bar(history, versions, |op| history.record(op).ok && history.record(op).ended < issued);
        if versions.iter().any(|version| history.record(version.op).ended >= bar && self.is(sector, *version, found)) {
            return Ok(());
        }
        Err(self.violation(sector, found, bar, "a read returned"))
    }

    /// The process or the power ended: what was in flight has happened, or not, or in part.
    pub fn cut(&mut self, cut: Cut) {
        self.cut_but(cut, &[]);
    }

    /// As [`Model::cut`], where somebody lives on who will send the requests in `again` again.
    pub fn cut_but(&mut self, cut: Cut, again: &[OpId]) {
        self.history.cut(again);
        let same = !self.changed && (cut == Cut::Kill || self.seen_after == Cut::Power);
        if !same {
            self.seen.fill(None);
        }
        if self.changed || cut == Cut::Power {
            self.seen_after = cut;
        }
        self.changed = false;
    }

    /// Says whether every group of the life that ends was atomic, and the size of a cache block.
    pub fn set_atomic(&mut self, block_sectors: Option<usize>) {
        self.groups.broken |= block_sectors.is_none();
        self.groups.block_sectors = block_sectors;
    }

    /// Checks what was read after a restart, before any new request. What was read before an
    /// interrupted check must be read again: recovery changes no content.
    ///
    /// # Errors
    /// The first sector that holds what it may not.
    pub fn observe(&mut self, first: usize, bytes: &[u8]) -> Result<(), Violation> {
        for (sector, bytes) in (first..).zip(bytes.chunks_exact(SECTOR)) {
            let found = self.look_at(sector, bytes);
            let bar = self.crash_bar(sector);
            if self.matches(sector, found, bar).next().is_none() {
                return Err(self.violation(sector, found, bar, "a restart brought back"));
            }
            let before = self.seen[sector].replace(found);
            let unstable = self.sectors[sector].iter().any(|version| version.content == ANY);
            if let Some(before) = before
                && before != found
                && !unstable
            {
                let reason = format!("{found:?} now, {before:?} after an earlier restart with no request in between");
                return Err(Violation { sector: sector as u64, reason });
            }
        }
        Ok(())
    }

    /// Whether a restart after a power cut now might bring back `found`, sector by sector.
    ///
    /// # Errors
    /// The first sector that holds what it may not.
    pub fn allows(&self, found: &[Found]) -> Result<(), Violation> {
        for (sector, &found) in found.iter().enumerate() {
            let bar = self.crash_bar(sector);
            if self.matches(sector, found, bar).next().is_none() {
                return Err(self.violation(sector, found, bar, "a restart brought back"));
            }
        }
        Ok(())
    }

    /// All sectors were observed: what was found is what they hold from now on.
    ///
    /// # Errors
    /// The first sector that shows that a group was not atomic, where it had to be.
    ///
    /// # Panics
    /// When a sector was not observed.
    pub fn settle(&mut self) -> Result<(), Violation> {
        if let Groups { block_sectors: Some(block_sectors), broken: false } = self.groups {
            self.check_groups(block_sectors)?;
        }
        let durable = self.seen_after == Cut::Power;
        if durable {
            self.groups = Groups::default();
        }
        let restart = self.history.begin(Act::Restart { durable }, 0..self.sectors.len());
        self.history.end(restart, true);
        self.settled = self.history.now();
        for sector in 0..self.sectors.len() {
            let found = self.seen[sector].expect("a sector is observed before it settles");
            let bar = self.crash_bar(sector);
            let (history, versions) = (&self.history, &mut self.sectors[sector]);
            versions.retain(|version| history.record(version.op).ended >= bar);
            let trimmed = versions.iter().any(|version| version.content == ANY);
            let content = match found {
                _ if trimmed => ANY,
                Found::Stamp { version, .. } => version,
                _ if begins_with_zeroes(self.initial_zeroes, self.initial.as_deref(), sector)
                    && versions.iter().all(|version| version.content == 0) =>
                {
                    0
                }
                _ => ZEROES,
            };
            if durable || trimmed {
                versions.clear();
            }
            versions.push(Version { op: restart.0, content });
        }
        Ok(())
    }

    /// As [`Model::settle`], before the requests in `again` are sent again: they happen later than all that was found.
    ///
    /// # Errors
    /// As [`Model::settle`].
    pub fn settle_but(&mut self, again: &[OpId]) -> Result<(), Violation> {
        self.settle()?;
        for &op in again {
            self.history.issue_again(op);
            let record = self.history.record(op.0);
            let content = match record.act {
                Act::Write { .. } => self.version_of(op),
                Act::Zeroes => ZEROES,
                Act::Trim => ANY,
                Act::Read | Act::Flush | Act::Restart { .. } => continue,
            };
            for sector in record.sectors.clone() {
                let version = Version { op: op.0, content };
                if !self.sectors[sector].contains(&version) {
                    self.sectors[sector].push(version);
                }
            }
            self.changed = true;
        }
        Ok(())
    }

    /// Whether a change is lost that one of `whose` requests made and that was acknowledged after `since`; called
    /// before [`Model::settle`].
    pub(crate) fn has_lost(&self, whose: &BTreeSet<u32>, since: Tick) -> bool {
        let counts = |op: u32| {
            let record = self.history.record(op);
            record.ok && record.ended > since && matches!(record.act, Act::Write { .. } | Act::Zeroes) && whose.contains(&op)
        };
        (0..self.len()).any(|sector| {
            let bar = bar(&self.history, &self.sectors[sector], counts);
            let found = self.seen[sector];
            bar > 0 && found.is_some_and(|found| self.matches(sector, found, bar).next().is_none())
        })
    }

    /// The present, in the order of events.
    pub(crate) fn now(&self) -> Tick {
        self.history.now()
    }

    /// What a sector holds: what it held in the beginning is version 0 of it.
    fn look_at(&self, sector: usize, bytes: &[u8]) -> Found {
        match inspect(bytes, self.seed) {
            Found::Zeroes => Found::Zeroes,
            _ if self.initial.as_deref().is_some_and(|initial| initial[sector * SECTOR..].starts_with(bytes)) => {
                Found::Stamp { sector: sector as u64, version: 0 }
            }
            found => found,
        }
    }

    /// What was observed in each sector since the last cut.
    pub(crate) fn seen(&self) -> &[Option<Found>] {
        &self.seen
    }

    pub(crate) fn versions(&self, sector: usize) -> &[Version] {
        &self.sectors[sector]
    }

    /// Versions of a sector that explain `found` and that are not buried below `bar`.
    pub(crate) fn matches(&self, sector: usize, found: Found, bar: Tick) -> impl Iterator<Item = Version> + '_ {
        let live = move |version: &Version| self.history.record(version.op).ended >= bar && self.is(sector, *version, found);
        self.sectors[sector].iter().copied().filter(live)
    }

    /// What is answered before this is buried for a crash.
    pub(crate) fn crash_bar(&self, sector: usize) -> Tick {
        bar(&self.history, &self.sectors[sector], |op| self.history.is_durable(self.history.record(op)))
    }

    /// Whether `found` is what `version` of `sector` looks like.
    fn is(&self, sector: usize, version: Version, found: Found) -> bool {
        match (version.content, found) {
            (ZEROES | ANY, Found::Zeroes) => true,
            (0, Found::Zeroes) => begins_with_zeroes(self.initial_zeroes, self.initial.as_deref(), sector),
            (ANY, Found::Garbage) => self.initial.is_some(),
            (_, Found::Garbage | Found::Zeroes) | (ZEROES, _) => false,
            (_, Found::Stamp { sector: other, .. }) if other % self.view as u64 != (sector % self.view) as u64 => false,
            (ANY, Found::Stamp { version: 0, .. }) => true,
            (ANY, Found::Stamp { version, .. }) if version >> REQUEST_BITS != self.mark >> REQUEST_BITS => true,
            (ANY, Found::Stamp { version, .. }) => self
                .history
                .get(version & ((1 << REQUEST_BITS) - 1))
                .is_some_and(|record| record.is_write() && record.sectors.contains(&sector)),
            (content, Found::Stamp { version, .. }) => content == version,
        }
    }

    pub(crate) fn is_trimmed(version: Version) -> bool {
        version.content == ANY
    }

    pub(crate) fn violation(&self, sector: usize, found: Found, bar: Tick, what: &str) -> Violation {
        let name = |version: &Version| {
            let record = self.history.record(version.op);
            let content = match version.content {
                ZEROES => "zeroes".to_owned(),
                ANY => "trimmed".to_owned(),
                number => format!("v{number}"),
            };
            let buried = if record.ended < bar { ", buried" } else { "" };
            format!("{content} ({:?}, ok {}, ticks {}..{}{buried})", record.act, record.ok, record.issued, record.ended)
        };
        let versions: Vec<String> = self.sectors[sector].iter().map(name).collect();
        Violation { sector: sector as u64, reason: format!("{what} {found:?}; known: {}", versions.join(", ")) }
    }
}

/// Whether a sector held zeroes in the beginning.
fn begins_with_zeroes(all: bool, initial: Option<&[u8]>, sector: usize) -> bool {
    all || initial.is_some_and(|initial| initial[sector * SECTOR..][..SECTOR].iter().all(|&byte| byte == 0))
}

/// The latest issue among the versions that `counts`: what was answered before it is buried.
pub(crate) fn bar(history: &History, versions: &[Version], counts: impl Fn(u32) -> bool) -> Tick {
    versions.iter().filter(|version| counts(version.op)).map(|version| history.record(version.op).issued).max().unwrap_or(0)
}
