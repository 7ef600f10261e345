//! Whether two ends hold the same: both read side by side, many requests at once, holes told instead of
//! read.
//!
//! ```text
//!   runs of both ─▶ both holes: the same │ one a hole: is the other zero? │ both data: the same bytes?
//! ```
//!
//! What is no whole block of both is compared through plain descriptors.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::rc::Rc;

use forebay::block::bio::Call;
use forebay::block::{Bio, Extent, Run, Sector, SectorCount, allocation, call};
use forebay::{Buffer, BufferPool, Devices, Engine, FileOptions, Reactor};

use super::bar::Bar;
use super::ends::{self, End, Source};
use crate::failure::{Failure, Outcome, say};
use crate::flags::CompareFlags;

/// Pairs of requests in flight, and how long they are at most.
const PAIRS: usize = 16;
const PAIR_SECTORS: u64 = 1024;
/// Runs that are asked for at a time.
const RUNS: usize = 64;

/// What two ends differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The first byte that differs.
    Content(u64),
    /// The first byte that one has allocated and the other has not.
    Allocation(u64),
}

/// Two ends that are read side by side; without a second one, the first is compared with zeroes.
pub struct Pair<'a> {
    pub pool: &'a BufferPool,
    pub a: &'a Source,
    pub b: Option<&'a Source>,
    /// Whether allocation counts, too.
    pub strict: bool,
}

/// What is known of a stretch of both ends without reading it.
#[derive(Clone, Copy)]
struct Stretch {
    extent: Extent,
    /// Whether the first and the second have a hole there.
    holes: [bool; 2],
}

/// A stretch whose content is on its way; an end with a hole is not read.
struct Reading {
    at: u64,
    /// Its allocation differs, and that counts.
    differs: bool,
    ends: [Option<(Call, Buffer, u32)>; 2],
}

impl Pair<'_> {
    /// Compares bytes `from..to` of both, and tells `progress` how far it is.
    pub async fn compare(&self, from: u64, to: u64, progress: impl FnMut(u64)) -> Result<Option<Difference>, Failure> {
        let ends = || std::iter::once(self.a).chain(self.b);
        let logical = ends().map(|end| end.target.as_ref().map(|target| u64::from(target.limits().logical_bytes)));
        // An end that is less than a block is compared as a whole in the first step.
        let block = logical.reduce(|a, b| Some(a?.max(b?))).flatten().unwrap_or(u64::MAX);
        let first = from.checked_next_multiple_of(block).map_or(to, |first| first.min(to));
        let whole = (to - to % block).max(first);
        if let Some(place) = self.compare_bytes(from, first).await? {
            return Ok(Some(Difference::Content(place)));
        }
        let found = self.compare_blocks([first / 512, whole / 512], SectorCount(block / 512), progress).await?;
        if found.is_some() {
            return Ok(found);
        }
        Ok(self.compare_bytes(whole, to).await?.map(Difference::Content))
    }

    /// Compares a few bytes.
    async fn compare_bytes(&self, from: u64, to: u64) -> Result<Option<u64>, Failure> {
        let a = self.a.read_bytes(from, to - from).await?;
        let place = match self.b {
            Some(b) => first_difference(&a, &b.read_bytes(from, to - from).await?),
            None => first_data(&a),
        };
        Ok(place.map(|place| from + place))
    }

    /// Compares whole blocks of `block` sectors each, from one sector to another.
    async fn compare_blocks(
        &self,
        [from, to]: [u64; 2],
        block: SectorCount,
        mut progress: impl FnMut(u64),
    ) -> Result<Option<Difference>, Failure> {
        let mut ahead: VecDeque<Stretch> = VecDeque::new();
        let mut reading: VecDeque<Reading> = VecDeque::new();
        let mut told = from;
        loop {
            if ahead.is_empty() && told < to {
                ahead = self.runs(told, to, block).await;
                told = ahead.back().map_or(to, |last| last.extent.end().0);
            }
            while reading.len() < PAIRS
                && let Some(part) = cut(&mut ahead)
            {
                if part.holes != [true; 2] {
                    reading.push_back(self.read(part));
                }
            }
            let Some(pair) = reading.pop_front() else {
                if told < to {
                    continue;
                }
                return Ok(None);
            };
            let at = pair.at;
            if pair.differs {
                return Ok(Some(Difference::Allocation(at)));
            }
            if let Some(place) = self.settle(pair).await? {
                return Ok(Some(Difference::Content(at + place)));
            }
            progress(at);
        }
    }

    /// What both know of their sectors from `at` on, as far as both tell, in whole blocks of both.
    async fn runs(&self, at: u64, to: u64, block: SectorCount) -> VecDeque<Stretch> {
        let extent = Extent::new(Sector(at), SectorCount(to - at));
        let mut told: [VecDeque<Run>; 2] = [VecDeque::new(), VecDeque::from([Run { count: extent.count, hole: true }])];
        for (end, told) in std::iter::once(self.a).chain(self.b).zip(&mut told) {
            if let Some(target) = &end.target {
                *told = allocation::runs_in_blocks(&**target, extent, block, RUNS).await.into();
            }
        }
        let mut stretches = VecDeque::new();
        let mut start = extent.start;
        let [a, b] = &mut told;
        while let (Some(one), Some(other)) = (a.front_mut(), b.front_mut()) {
            let left = SectorCount(extent.end().0 - start.0);
            let count = one.count.min(other.count).min(left);
            if count.0 == 0 {
                break;
            }
            stretches.push_back(Stretch { extent: Extent::new(start, count), holes: [one.hole, other.hole] });
            start = start + count;
            for list in [&mut *a, &mut *b] {
                if let Some(run) = list.front_mut() {
                    run.count = run.count - count;
                }
                list.retain(|run| run.count.0 > 0);
            }
        }
        stretches
    }

    fn read(&self, part: Stretch) -> Reading {
        let bytes = u32::try_from(part.extent.count.to_bytes()).expect("at most PAIR_SECTORS");
        let differs = self.strict && part.holes[0] != part.holes[1];
        let one = |end: Option<&Source>, hole: bool| {
            let target = end?.target.as_ref().filter(|_| !hole && !differs)?;
            let buffer = self.pool.take(bytes as usize);
            let read = Bio::read(part.extent.start, Rc::clone(buffer.segments()), 0, bytes);
            Some((call(&**target, read), buffer, bytes))
        };
        let ends = [one(Some(self.a), part.holes[0]), one(self.b, part.holes[1])];
        Reading { at: part.extent.start.to_bytes(), differs, ends }
    }

    /// Waits for a pair of requests; the first byte that differs.
    async fn settle(&self, pair: Reading) -> Result<Option<u64>, Failure> {
        let mut content: [Option<(Buffer, u32)>; 2] = [None, None];
        for ((end, reading), place) in [Some(self.a), self.b].into_iter().zip(pair.ends).zip(&mut content) {
            let (Some(end), Some((call, buffer, bytes))) = (end, reading) else { continue };
            let status = call.await.status();
            if !status.is_ok() {
                return Err(Failure::Failed(format!("reading {} near {} failed: {}", end.name, pair.at, super::words(status))));
            }
            *place = Some((buffer, bytes));
        }
        let [a, b] = &mut content;
        let bytes = |(buffer, bytes): &mut (Buffer, u32)| buffer.bytes_mut()[..*bytes as usize].to_vec();
        Ok(match (a, b) {
            (Some(a), Some(b)) => {
                let length = a.1 as usize;
                first_difference(&a.0.bytes_mut()[..length], &b.0.bytes_mut()[..length])
            }
            (Some(only), None) | (None, Some(only)) => first_data(&bytes(only)),
            (None, None) => None,
        })
    }
}

/// Cuts what is read at once off the first stretch.
fn cut(ahead: &mut VecDeque<Stretch>) -> Option<Stretch> {
    let first = ahead.front_mut()?;
    let most = if first.holes == [true; 2] { u64::MAX } else { PAIR_SECTORS };
    let extent = Extent::new(first.extent.start, first.extent.count.min(SectorCount(most)));
    let part = Stretch { extent, ..*first };
    first.extent = Extent::new(extent.end(), first.extent.count - extent.count);
    if first.extent.count.0 == 0 {
        ahead.pop_front();
    }
    Some(part)
}

/// The first place where two stretches of one length differ.
fn first_difference(a: &[u8], b: &[u8]) -> Option<u64> {
    if a == b {
        return None;
    }
    a.iter().zip(b).position(|(a, b)| a != b).map(|place| place as u64)
}

/// The first byte that is not zero.
fn first_data(bytes: &[u8]) -> Option<u64> {
    bytes.iter().position(|&byte| byte != 0).map(|place| place as u64)
}

/// `forebay compare`: exit status 0 the same, 1 different, 2 an error.
pub fn run(flags: &CompareFlags) -> Outcome {
    let judged = super::on_reactor(Engine::Auto, async |reactor, pool| Box::pin(judge(flags, reactor, pool)).await);
    // An error has exit status 2 here.
    let (code, text) = judged.map_err(|failure| Failure::Usage(failure.sentence()))?;
    if !flags.quiet {
        say(&text)?;
    }
    Ok(ExitCode::from(code))
}

/// The exit status and what is said.
async fn judge(flags: &CompareFlags, reactor: &Reactor, pool: &BufferPool) -> Result<(u8, String), Failure> {
    let devices = Devices::new(reactor, FileOptions::default());
    let devices = Box::pin(ends::connect(devices, pool, &[&flags.first, &flags.second], &[])).await?;
    let open = |word: &str| Source::open(&devices, reactor, &End::parse(word)?, word);
    let (a, b) = (open(&flags.first)?, open(&flags.second)?);
    if flags.strict && a.bytes != b.bytes {
        return Ok((1, "Strict mode: Image size mismatch!\n".to_owned()));
    }
    let (common, total) = (a.bytes.min(b.bytes), a.bytes.max(b.bytes));
    let begun = reactor.now();
    let mut bar = if flags.quiet { None } else { Bar::new(flags.progress) };
    let mut draw = |at: u64| {
        if let Some(bar) = &mut bar {
            bar.draw(0, at, total, reactor.now().saturating_sub(begun));
        }
    };
    let both = Pair { pool, a: &a, b: Some(&b), strict: flags.strict };
    let mut found = Box::pin(both.compare(0, common, &mut draw)).await?;
    let mut warning = "";
    if found.is_none() && a.bytes != b.bytes {
        warning = "Warning: Image size mismatch!\n";
        let longer = Pair { pool, a: if a.bytes > b.bytes { &a } else { &b }, b: None, strict: false };
        found = Box::pin(longer.compare(common, total, &mut draw)).await?;
    }
    draw(total);
    if let Some(bar) = bar {
        bar.end();
    }
    Ok(match found {
        Some(Difference::Content(at)) => (1, format!("{warning}Content mismatch at offset {at}!\n")),
        Some(Difference::Allocation(at)) => (1, format!("Strict mode: Offset {at} block status mismatch!\n")),
        None => (0, format!("{warning}Images are identical.\n")),
    })
}
