//! `forebay copy` and `forebay compare`: files and devices through the copy engine.
//!
//! ```text
//!   look at all ends ─▶ open ─▶ journal? ─▶ shared blocks? ─▶ the engine ─▶ the last bytes ─▶ durable ─▶ verify
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
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use forebay::block::{Sector, SectorCount, Status, Target};
use forebay::{BufferPool, Devices, FileOptions, Reactor, engine};
use forebay_target::copy::{Engine, How, Journal, Leg, Settings, Watch, Zeroes};

use self::bar::{Bar, LOOK_EVERY};
use self::compare::{Difference, Pair};
use self::ends::{Destination, End, Source};
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
    if streams && flags.resume.is_some() {
        return usage("--resume needs ends that have a place: standard input and output have none");
    }
    if streams && flags.verify {
        return usage("--verify reads everything again, and standard input and output cannot: use --checksum");
    }
    if to_stream > 0 && flags.checksum {
        return usage("--checksum prints to standard output, where the copy goes: leave one out");
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
    let mut looked = Vec::new();
    for word in &flags.destinations {
        let end = End::parse(word)?;
        let to = Destination::look(&end, word, source.bytes)?;
        let same =
            |seen: Option<ends::Seen>| seen.is_some() && seen.map(|seen| seen.identity) == to.seen.map(|seen| seen.identity);
        if same(source.seen) {
            return Err(Failure::Failed(format!("{word} and {} are the same file: give another destination", flags.source)));
        }
        if looked
            .iter()
            .any(|(_, other): &(End, Destination)| same(other.seen) || (other.path.is_some() && other.path == to.path))
        {
            return Err(Failure::Failed(format!("{word} is given twice: give each destination once")));
        }
        looked.push((end, to));
    }
    let mut journal_file = None;
    if let Some(path) = &flags.resume {
        let here = ends::look(path)?.map(|seen| seen.identity);
        let is_end = |seen: Option<ends::Seen>, end: Option<&PathBuf>| {
            (here.is_some() && seen.map(|seen| seen.identity) == here) || end == Some(path)
        };
        if is_end(source.seen, source.path.as_ref()) || looked.iter().any(|(_, to)| is_end(to.seen, to.path.as_ref())) {
            return Err(Failure::Failed(format!("{} cannot be the journal of its own copy: name another", path.display())));
        }
        let file = JournalFile::open(reactor, path).await?;
        if looked.iter().any(|(_, to)| to.made) {
            file.begins()?;
        }
        journal_file = Some(file);
    }
    let mut destinations = Vec::new();
    for (end, to) in looked {
        let allocate = flags.allocated;
        let to = to.open(devices, reactor, &end, source.bytes, allocate)?;
        if let Some(path) = to.path.as_ref().filter(|_| to.made && flags.resume.is_some()) {
            // The journal speaks of this file: its name must last as long.
            ends::sync_folder(path).map_err(|error| Failure::because(format!("making {} durable", to.name), &error))?;
        }
        destinations.push(to);
    }
    let mut zero = destinations.iter().all(|to| to.made || to.target.is_none()) || flags.destination_is_zero;
    let mut journal = None;
    if let Some(file) = journal_file {
        let kept = file.journal(&source, &destinations, zero).await?;
        zero = kept.state().zero;
        journal = Some((file, kept));
    }
    let settled = journal.as_ref().map_or(0, |(_, journal)| journal.state().settled);
    let sectors = SectorCount(source.bytes.div_ceil(512));
    let streams = flags.destinations.iter().any(|word| word == "-");
    Ok(Job {
        hash: flags.checksum.then(|| InOrder::new(sectors, Hash::default())),
        output: streams.then(|| InOrder::new(sectors, Output)),
        flags,
        reactor,
        pool,
        source,
        destinations,
        zero: zero && !streams && !flags.checksum,
        journal,
        watch: Rc::default(),
        first: settled / 512,
    })
}

impl Job<'_> {
    /// Lets the kernel copy where it may, can, and is the better one.
    fn offload(&mut self) -> Result<bool, Failure> {
        let flags = self.flags;
        let plain = !flags.no_offload && !flags.checksum && !flags.allocated && flags.rate.is_none() && flags.resume.is_none();
        let [to] = self.destinations.as_slice() else { return Ok(false) };
        if !plain {
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
        let done = offload::copy(&self.source, to, flags.offload, draw)?;
        if let Some(bar) = bar {
            bar.end();
        }
        // What the kernel began is not zero any more.
        self.zero &= !flags.offload;
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

    /// Bytes that the engine copies: whole blocks of all ends.
    fn whole_bytes(&self, legs: &[(String, Leg)]) -> u64 {
        let Some(source) = &self.source.target else { return 0 };
        if self.destinations.iter().any(|to| to.path.is_some() && to.target.is_none()) {
            return 0;
        }
        let logical = |target: &dyn Target| u64::from(target.limits().logical_bytes);
        let block = legs.iter().map(|(_, leg)| logical(&*leg.target)).fold(logical(&**source), u64::max);
        self.source.bytes - self.source.bytes % block
    }

    async fn through_engine(&self) -> Result<(), Failure> {
        let flags = self.flags;
        let legs = self.legs();
        let whole = self.whole_bytes(&legs);
        let mut copied = Ok(());
        if let Some(target) = &self.source.target {
            let in_flight = flags.queue_size.min(u64::from(flags.requests.get()) * u64::from(flags.request_size));
            let settings =
                Settings { piece_bytes: flags.request_size, in_flight_bytes: in_flight, rate: flags.rate, ..Settings::default() };
            let engine = Engine::new(self.reactor, self.pool, &settings);
            self.hash_before(&engine, target).await?;
            let from = Leg::new(Rc::clone(target), Sector(0));
            let to: Vec<Leg> = legs.iter().map(|(_, leg)| leg.clone()).collect();
            let (count, how) = (SectorCount(whole / 512), self.how());
            let outcome = match &self.journal {
                None => Box::pin(self.with_bar(whole, engine.copy(&from, &to, count, &how))).await,
                Some((_, journal)) => {
                    let copying = engine.copy_noting(&from, &to, count, &how, journal, SETTLE_EVERY);
                    let failed = |status| Failure::Failed(format!("keeping the journal failed: {}", words(status)));
                    Box::pin(self.with_bar(whole, Box::pin(copying))).await.map_err(failed)?
                }
            };
            copied = self.report(&outcome, &legs);
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
        self.report(&outcome, &[("the checksum".to_owned(), to[0].clone())])
    }

    /// Says what went wrong.
    fn report(&self, outcome: &forebay_target::copy::Outcome, legs: &[(String, Leg)]) -> Result<(), Failure> {
        let mut what = Vec::new();
        for extent in &outcome.unread {
            let at = (self.first + extent.start.0) * 512;
            what.push(format!("{} bytes at {at} of {} cannot be read", extent.count.to_bytes(), self.source.name));
        }
        for failed in &outcome.unwritten {
            let name = legs.get(failed.leg).map_or("a destination", |(name, _)| name);
            let at = failed.ranges.first().map_or(0, |first| (self.first + first.start.0) * 512);
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
        for to in self.destinations.iter().filter(|to| to.path.is_some() || to.target.is_some()) {
            let back = Source {
                name: to.name.clone(),
                target: to.target.clone(),
                bytes: self.source.bytes,
                path: to.path.clone(),
                seen: None,
            };
            let pair = Pair { pool: self.pool, a: &self.source, b: Some(&back), strict: false };
            if let Some(Difference::Content(at)) = Box::pin(pair.compare(0, self.source.bytes, |_| {})).await? {
                let place = format!("{} differs from {} at byte {at}", to.name, self.source.name);
                return Err(Failure::Failed(format!(
                    "{place}: one of them does not keep what is written, or was changed meanwhile"
                )));
            }
        }
        Ok(())
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
