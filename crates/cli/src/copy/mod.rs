//! `forebay copy` and `forebay compare`: files and devices through the copy engine.
//!
//! ```text
//!   look at all ends ─▶ open ─▶ journal? ─▶ by the kernel? ─▶ the engine ─▶ the last bytes ─▶ durable ─▶ verify
//! ```
//!
//! 1. Nothing is written before every end is found to fit.
//! 2. Exit status 0 means that everything arrived and is durable.
//! 3. A destination counts as zero only when it was made here, or when that was said.

mod bar;
mod compare;
mod ends;
mod input;
mod journal;
mod offload;
mod stream;

use std::io::Write;
use std::pin::pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use forebay::block::{Extent, Sector, SectorCount, Status, Target};
use forebay::{BufferPool, Devices, FileOptions, Reactor, engine};
use forebay_target::copy::{Engine, How, Journal, Leg, Settings, Watch, Zeroes};

use self::bar::{Bar, LOOK_EVERY};
use self::compare::{Difference, Pair};
use self::ends::{Destination, End, Opening, Source};
use self::journal::JournalFile;
use self::stream::{Hash, InOrder, Output, why};
use crate::failure::{Failure, Outcome, say};
use crate::figures;
use crate::flags::{CompareFlags, CopyFlags};

/// How often what is durable goes into the journal.
const SETTLE_EVERY: Duration = Duration::from_secs(1);

/// `forebay copy`.
pub fn run(flags: &CopyFlags) -> Outcome {
    check(flags)?;
    on_reactor(flags.engine.into(), async |reactor, pool| {
        if flags.source == "-" {
            return Box::pin(input::copy(reactor, pool, flags)).await;
        }
        Box::pin(copy(reactor, pool, flags)).await
    })
}

/// `forebay compare`.
pub fn compare(flags: &CompareFlags) -> Outcome {
    compare::run(flags)
}

/// What cannot be meant, as far as the words tell.
fn check(flags: &CopyFlags) -> Result<(), Failure> {
    let usage = |text: &str| Err(Failure::Usage(text.to_owned()));
    let to_stream = flags.destinations.iter().filter(|word| *word == "-").count();
    let streams = flags.source == "-" || to_stream > 0;
    if to_stream > 1 {
        return usage("standard output is given twice: give it once");
    }
    let fleeting = |word: &&String| word.starts_with("ram:") || (word.starts_with("null:") && *word != "null:");
    if let Some(word) = flags.destinations.iter().find(fleeting).filter(|_| flags.resume.is_some()) {
        return usage(&format!("--resume needs destinations that stay, and {word} does not"));
    }
    if streams && flags.resume.is_some() {
        return usage("--resume needs ends that have a place: standard input and output have none");
    }
    if streams && flags.verify {
        return usage("--verify reads everything again, and standard input and output cannot: use --checksum");
    }
    if to_stream > 0 && flags.checksum {
        return usage("--checksum prints to standard output, where the copy goes: leave one out");
    }
    if flags.keep_going && (streams || flags.checksum) {
        return usage(
            "--keep-going leaves gaps, and --checksum, standard input and standard output need everything in order: leave one out",
        );
    }
    Ok(())
}

/// Runs `work` on a reactor of its own.
fn on_reactor<T>(
    choice: forebay::Engine,
    work: impl AsyncFnOnce(&Reactor, &BufferPool) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let backend = engine(choice).map_err(|error| Failure::because("starting the engine", &error))?;
    let reactor = Reactor::new(backend);
    let pool = BufferPool::new(&reactor);
    let outcome = reactor.run(work(&reactor, &pool));
    reactor.clear();
    outcome.map_err(|error| Failure::because("the engine broke", &error))?
}

/// What a status means, for people.
fn words(status: Status) -> &'static str {
    match status {
        Status::Ok => "no error",
        Status::IoError => "input/output error",
        Status::NoSpace => "no space left",
        Status::ReadOnly => "it is read-only",
        Status::Unsupported => "it cannot do that",
        Status::Aborted => "it was given up",
        Status::Again => "it is busy",
    }
}

/// What of `name` cannot be read: `extents`, which count from sector `begin`.
fn unread(extents: &[Extent], begin: u64, name: &str) -> Vec<String> {
    let text = |extent: &Extent| {
        let at = Sector(begin + extent.start.0).to_bytes();
        format!("{} bytes at {at} of {name} cannot be read", extent.count.to_bytes())
    };
    extents.iter().map(text).collect()
}

/// A copy in the making.
struct Job<'a> {
    flags: &'a CopyFlags,
    reactor: &'a Reactor,
    pool: &'a BufferPool,
    source: Source,
    destinations: Vec<Destination>,
    /// All destinations are zero where they are not written yet.
    zero: bool,
    journal: Option<(JournalFile, Journal)>,
    hash: Option<Rc<InOrder<Hash>>>,
    output: Option<Rc<InOrder<Output>>>,
    watch: Rc<Watch>,
    /// Sectors that were copied before.
    first: u64,
}

async fn copy(reactor: &Reactor, pool: &BufferPool, flags: &CopyFlags) -> Outcome {
    let words: Vec<&str> = flags.destinations.iter().map(String::as_str).collect();
    let devices = Devices::new(reactor, FileOptions::default()).with_connections(flags.connections.get().into());
    let devices = Box::pin(ends::connect(devices, pool, &[&flags.source], &words)).await?;
    let mut job = Box::pin(open(reactor, pool, flags, &devices)).await?;
    let begun = reactor.now();
    let copied = if job.offload()? { Ok(()) } else { Box::pin(job.through_engine()).await };
    if copied.is_err() && !flags.keep_going {
        return copied.map(|()| ExitCode::SUCCESS);
    }
    let mut synced = Ok(());
    for to in &job.destinations {
        synced = synced.and(to.sync().await);
    }
    copied.and(synced)?;
    if flags.verify {
        Box::pin(job.verify()).await?;
    }
    if let Some((file, _)) = job.journal.take() {
        file.remove()?;
    }
    if let Some(hash) = &job.hash {
        say(&format!("{}  {}\n", hash.look(Hash::text), flags.source))?;
    }
    job.summary(reactor.now().saturating_sub(begun));
    Ok(ExitCode::SUCCESS)
}

/// Finds out whether everything fits, and opens it.
async fn open<'a>(
    reactor: &'a Reactor,
    pool: &'a BufferPool,
    flags: &'a CopyFlags,
    devices: &Devices,
) -> Result<Job<'a>, Failure> {
    let source = Source::open(devices, reactor, &End::parse(&flags.source)?, &flags.source)?;
    let looked = ends::look_at(&flags.destinations, &source, Some(source.bytes))?;
    let mut file = None;
    if let Some(path) = &flags.resume {
        file = Some(JournalFile::open(reactor, path, &source, &looked).await?);
    }
    let bytes = Some(source.bytes);
    let destinations = ends::open_all(looked, Opening { devices, reactor, bytes, allocate: flags.allocated })?;
    let zero = destinations.iter().all(|to| to.made || to.target.is_none()) || flags.destination_is_zero;
    let streams = flags.destinations.iter().any(|word| word == "-");
    let sectors = SectorCount(source.bytes.div_ceil(512));
    let mut job = Job {
        hash: flags.checksum.then(|| InOrder::new(sectors, Hash::default())),
        output: streams.then(|| InOrder::new(sectors, Output)),
        flags,
        reactor,
        pool,
        source,
        destinations,
        zero,
        journal: None,
        watch: Rc::default(),
        first: 0,
    };
    if let Some(file) = file
        && let Err(failure) = Box::pin(job.resume(file)).await
    {
        job.destinations.iter().for_each(Destination::unmake);
        return Err(failure);
    }
    // What takes everything in order takes zeroes, too; and holes are what a full allocation has not.
    let reserved = job.destinations.iter().all(|to| to.reserved || to.target.is_none());
    job.zero &= !streams && !flags.checksum && (!flags.allocated || reserved);
    Ok(job)
}

impl Job<'_> {
    /// Goes on where the journal says, or begins it.
    async fn resume(&mut self, file: JournalFile) -> Result<(), Failure> {
        for to in self.destinations.iter().filter(|to| to.made) {
            // The journal speaks of this file: its name must last as long.
            to.sync_name().map_err(|error| Failure::because(format!("making {} durable", to.name), &error))?;
        }
        let journal = file.journal(&self.source, &self.destinations, self.zero).await?;
        let state = journal.state();
        let told = self.source.is_file() && self.destinations.iter().all(Destination::is_file);
        if state.settled > 0 && !told && self.difference(state.settled).await?.is_some() {
            return Err(file.of_another());
        }
        // What is behind may have been written before; that it is as it was is known of files only.
        let as_before = told || (self.source.is_file() && self.flags.destination_is_zero);
        self.zero = state.zero && (as_before || file.found.is_none());
        self.first = state.settled / 512;
        self.journal = Some((file, journal));
        Ok(())
    }

    /// Lets the kernel copy where that is asked for and possible.
    fn offload(&mut self) -> Result<bool, Failure> {
        let flags = self.flags;
        let [to] = self.destinations.as_slice() else { return Ok(false) };
        if !flags.offload {
            return Ok(false);
        }
        let begun = self.reactor.now();
        let mut bar = Bar::new(flags.progress);
        let total = self.source.bytes;
        let draw = |at| {
            if let Some(bar) = &mut bar {
                bar.draw(0, at, total, self.reactor.now().saturating_sub(begun));
            }
        };
        let done = offload::copy(&self.source, to, draw)?;
        if let Some(bar) = bar {
            bar.end();
        }
        // What the kernel began is not zero any more.
        self.zero = false;
        Ok(done)
    }

    /// The ends that the engine writes to, in the order of their names; those that only swallow are none.
    fn legs(&self) -> Vec<(String, Leg)> {
        let leg = |target: Rc<dyn Target>| Leg::new(target, Sector(0));
        let mut legs = Vec::new();
        for to in &self.destinations {
            if let Some(target) = &to.target {
                legs.push((to.name.clone(), leg(Rc::clone(target))));
            }
        }
        if let Some(output) = &self.output {
            legs.push(("standard output".to_owned(), leg(Rc::clone(output) as Rc<dyn Target>)));
        }
        if let Some(hash) = &self.hash {
            legs.push(("the checksum".to_owned(), leg(Rc::clone(hash) as Rc<dyn Target>)));
        }
        legs
    }

    /// Bytes of a block of all ends.
    fn block_bytes(&self, legs: &[(String, Leg)]) -> u32 {
        let ends = legs.iter().map(|(_, leg)| &leg.target).chain(&self.source.target);
        ends.map(|target| target.limits().logical_bytes).max().unwrap_or(512)
    }

    /// Bytes that the engine copies: whole blocks of all ends.
    fn whole_bytes(&self, block_bytes: u32) -> u64 {
        if self.destinations.iter().any(|to| to.file.is_some() && to.target.is_none()) {
            return 0;
        }
        self.source.target.as_ref().map_or(0, |_| self.source.bytes - self.source.bytes % u64::from(block_bytes))
    }

    async fn through_engine(&self) -> Result<(), Failure> {
        let flags = self.flags;
        let legs = self.legs();
        let block_bytes = self.block_bytes(&legs);
        let whole = self.whole_bytes(block_bytes);
        let mut copied = Ok(());
        if let Some(target) = &self.source.target {
            let piece_bytes = flags.request_size.next_multiple_of(block_bytes);
            let in_flight_bytes = flags.queue_size.min(u64::from(flags.requests.get()) * u64::from(piece_bytes));
            let settings = Settings { piece_bytes, in_flight_bytes, rate: flags.rate, ..Settings::default() };
            let engine = Engine::new(self.reactor, self.pool, &settings);
            self.hash_before(&engine, target).await?;
            let from = Leg::new(Rc::clone(target), Sector(0));
            let to: Vec<Leg> = legs.iter().map(|(_, leg)| leg.clone()).collect();
            let (count, how) = (SectorCount(whole / 512), self.how());
            let outcome = match &self.journal {
                None => Box::pin(self.with_bar(whole, engine.copy(&from, &to, count, &how))).await,
                Some((file, journal)) => {
                    let copying = engine.copy_noting(&from, &to, count, &how, journal, SETTLE_EVERY);
                    let failed = |why| file.not_noted(why, &legs, journal.state().settled);
                    Box::pin(self.with_bar(whole, Box::pin(copying))).await.map_err(failed)?
                }
            };
            copied = self.report(&outcome, &legs, self.first);
            if copied.is_err() && !flags.keep_going {
                return copied;
            }
        }
        let tail = self.source.read_bytes(whole, self.source.bytes - whole).await?;
        for to in &self.destinations {
            let done = to.write_tail(whole, &tail).await;
            if done.is_err() && !flags.keep_going {
                return done;
            }
            copied = copied.and(done);
        }
        // What is held back for a line to end would be written when nobody hears of errors any more.
        let pass_on = |output: &Rc<InOrder<Output>>| output.take(&tail).and_then(|()| std::io::stdout().flush());
        let taken = self.output.as_ref().map_or(Ok(()), pass_on);
        taken.map_err(|error| Failure::Failed(format!("writing standard output failed: {}", why(&error))))?;
        let hashed = self.hash.as_ref().map_or(Ok(()), |hash| hash.take(&tail));
        copied.and(hashed.map_err(|error| Failure::because("hashing", &error)))
    }

    fn how(&self) -> How {
        let flags = self.flags;
        let zeroes = match (self.zero, flags.allocated) {
            (true, _) => Zeroes::Skip,
            (false, true) => Zeroes::Keep,
            (false, false) => Zeroes::Unmap,
        };
        How {
            sequential: self.output.is_some() || self.hash.is_some(),
            keep_going: flags.keep_going,
            holes: !flags.no_extents,
            detect_bytes: flags.sparse,
            zeroes,
            durable: false,
            watch: Some(Rc::clone(&self.watch)),
        }
    }

    /// Hashes what was copied before this run.
    async fn hash_before(&self, engine: &Engine, source: &Rc<dyn Target>) -> Result<(), Failure> {
        let Some(hash) = self.hash.as_ref().filter(|_| self.first > 0) else { return Ok(()) };
        let from = Leg::new(Rc::clone(source), Sector(0));
        let to = [Leg::new(Rc::clone(hash) as Rc<dyn Target>, Sector(0))];
        let how = How { sequential: true, holes: !self.flags.no_extents, ..How::default() };
        let outcome = Box::pin(engine.copy(&from, &to, SectorCount(self.first), &how)).await;
        self.report(&outcome, &[("the checksum".to_owned(), to[0].clone())], 0)
    }

    /// Says what went wrong in a copy that began at sector `begin`.
    fn report(&self, outcome: &forebay_target::copy::Outcome, legs: &[(String, Leg)], begin: u64) -> Result<(), Failure> {
        let mut what = unread(&outcome.unread, begin, &self.source.name);
        for failed in &outcome.unwritten {
            let name = legs.get(failed.leg).map_or("a destination", |(name, _)| name);
            let at = failed.ranges.first().map_or(0, |first| (begin + first.start.0) * 512);
            let error = self.output.as_ref().filter(|_| name == "standard output").and_then(|output| output.error());
            let why = error.map_or_else(|| words(failed.status).to_owned(), |error| why(&error));
            what.push(format!("writing {name} at {at} failed: {why}"));
        }
        if what.is_empty() {
            return Ok(());
        }
        let whole = figures::bytes((self.first + self.watch.settled().0) * 512);
        let rest = if self.flags.keep_going { "the rest was copied" } else { "the copy ends here" };
        Err(Failure::Failed(format!("{}; {rest}, and the first {whole} are whole", what.join("; "))))
    }

    /// Waits for the copy, and meanwhile draws its progress.
    async fn with_bar<T>(&self, total: u64, copying: impl Future<Output = T>) -> T {
        let Some(mut bar) = Bar::new(self.flags.progress) else { return copying.await };
        let (begun, first) = (self.reactor.now(), self.first * 512);
        let elapsed = || self.reactor.now().saturating_sub(begun);
        let mut copying = pin!(copying);
        let mut look = pin!(self.reactor.sleep(LOOK_EVERY));
        let outcome = std::future::poll_fn(|cx| {
            if let Poll::Ready(outcome) = copying.as_mut().poll(cx) {
                return Poll::Ready(outcome);
            }
            while look.as_mut().poll(cx).is_ready() {
                bar.draw(first, first + self.watch.progress().done, total, elapsed());
                look.set(self.reactor.sleep(LOOK_EVERY));
            }
            Poll::Pending
        })
        .await;
        bar.draw(first, first + self.watch.progress().done, total, elapsed());
        bar.end();
        outcome
    }

    /// Reads everything back.
    async fn verify(&self) -> Result<(), Failure> {
        let Some((name, at)) = self.difference(self.source.bytes).await? else { return Ok(()) };
        let place = format!("{name} differs from {} at byte {at}", self.source.name);
        Err(Failure::Failed(format!("{place}: one of them does not keep what is written, or was changed meanwhile")))
    }

    /// The first destination that is not as the source in its first `bytes` bytes, and the first that differs.
    async fn difference(&self, bytes: u64) -> Result<Option<(String, u64)>, Failure> {
        for to in self.destinations.iter().filter(|to| to.file.is_some() || to.target.is_some()) {
            let back = Source {
                name: to.name.clone(),
                end: to.end.clone(),
                target: to.target.clone(),
                bytes: self.source.bytes,
                file: to.file.clone(),
                seen: None,
            };
            let pair = Pair { pool: self.pool, a: &self.source, b: Some(&back), strict: false };
            if let Some(Difference::Content(at)) = Box::pin(pair.compare(0, bytes, |_| {})).await? {
                return Ok(Some((back.name, at)));
            }
        }
        Ok(None)
    }

    fn summary(&self, elapsed: Duration) {
        let seen = self.watch.progress();
        let total = figures::bytes(self.source.bytes);
        let resumed = if self.first > 0 { format!(", {} of it before", figures::bytes(self.first * 512)) } else { String::new() };
        let parts = [("read", seen.read), ("written", seen.written), ("zeroed", seen.zeroed), ("left alone", seen.skipped)];
        let parts: Vec<_> = parts.iter().map(|(what, bytes)| format!("{} {what}", figures::bytes(*bytes))).collect();
        tracing::info!("{total} copied in {:.2} s{resumed}: {}", elapsed.as_secs_f64(), parts.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: CopyFlags,
    }

    /// The refusal of a command line.
    fn refused(words: &[&str]) -> Option<String> {
        let line = Line::try_parse_from(["copy"].iter().chain(words)).unwrap();
        check(&line.flags).err().map(|failure| failure.sentence())
    }

    #[test]
    fn keep_going_is_refused_where_everything_is_needed_in_order() {
        for words in [["a", "b", "--checksum"], ["-", "b", "--progress"], ["a", "-", "--progress"]] {
            assert_eq!(refused(&words), None);
            let told = refused(&[&words[..], &["--keep-going"]].concat()).unwrap();
            assert!(told.contains("--keep-going leaves gaps"), "{told}");
        }
        assert_eq!(refused(&["a", "b", "--keep-going"]), None);
    }

    #[test]
    fn what_cannot_be_read_is_told_from_the_start_of_the_source() {
        let extents = [Extent::new(Sector(3), SectorCount(2))];
        assert_eq!(unread(&extents, 0, "disk"), ["1024 bytes at 1536 of disk cannot be read"]);
        assert_eq!(unread(&extents, 8, "disk"), ["1024 bytes at 5632 of disk cannot be read"]);
    }
}
