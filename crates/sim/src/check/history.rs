//! The requests of a run in the order in which they were issued and answered.
//!
//! Every issue and every answer takes one tick of a counter, so that "answered before the other was
//! issued" is a comparison of two numbers. Request 0 is what the device held in the beginning.

use std::ops::Range;

/// A point in the order of events.
pub(crate) type Tick = u32;
/// The tick of an answer that did not come yet.
pub(crate) const NEVER: Tick = Tick::MAX;

/// Number of a request; of a write also the version that it stamps into its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpId(pub u32);

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Returns content.
    Read,
    /// Changes content.
    Write {
        /// Durable once acknowledged.
        fua: bool,
    },
    /// Changes content to zeroes.
    Zeroes,
    /// Makes content unneeded.
    Trim,
    /// Makes acknowledged changes durable.
    Flush,
    /// A restart: what was read after it counts as written by it.
    Restart {
        /// Whether that is durable: after a power cut it is, after a kill not yet.
        durable: bool,
    },
}

/// A request and its fate.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) act: Act,
    pub(crate) sectors: Range<usize>,
    pub(crate) issued: Tick,
    pub(crate) ended: Tick,
    pub(crate) ok: bool,
}

impl Record {
    /// Whether its data went through a write that carries a stamp.
    pub(crate) fn is_write(&self) -> bool {
        matches!(self.act, Act::Write { .. })
    }
}

/// All requests of a run.
#[derive(Clone)]
pub(crate) struct History {
    records: Vec<Record>,
    tick: Tick,
    /// The latest issue of a flush that succeeded: what was acknowledged before is durable.
    flushed: Tick,
    open_reads: Vec<Tick>,
}

impl History {
    /// Nothing has happened to a device of `sectors`.
    pub(crate) fn new(sectors: usize) -> Self {
        let genesis = Record { act: Act::Restart { durable: true }, sectors: 0..sectors, issued: 0, ended: 0, ok: true };
        Self { records: vec![genesis], tick: 0, flushed: 0, open_reads: Vec::new() }
    }

    pub(crate) fn record(&self, op: u32) -> &Record {
        &self.records[op as usize]
    }

    pub(crate) fn get(&self, op: u32) -> Option<&Record> {
        self.records.get(op as usize)
    }

    fn next_tick(&mut self) -> Tick {
        self.tick += 1;
        self.tick
    }

    pub(crate) fn now(&self) -> Tick {
        self.tick
    }

    pub(crate) fn begin(&mut self, act: Act, sectors: Range<usize>) -> OpId {
        let issued = self.next_tick();
        if act == Act::Read {
            self.open_reads.push(issued);
        }
        let number = u32::try_from(self.records.len()).expect("a run has fewer than 2^32 requests");
        self.records.push(Record { act, sectors, issued, ended: NEVER, ok: false });
        OpId(number)
    }

    pub(crate) fn end(&mut self, op: OpId, ok: bool) {
        let tick = self.next_tick();
        let record = &mut self.records[op.0 as usize];
        assert!(record.ended == NEVER, "request {} is answered once", op.0);
        record.ended = tick;
        record.ok = ok;
        let (act, issued) = (record.act, record.issued);
        match act {
            Act::Read => self.open_reads.retain(|&open| open != issued),
            Act::Flush if ok => self.flushed = self.flushed.max(issued),
            _ => {}
        }
    }

    /// Ends everything that was in flight, but for what somebody who lives on will send again: nobody knows whether it
    /// happened.
    pub(crate) fn cut(&mut self, again: &[OpId]) {
        let tick = self.next_tick();
        let spared: Vec<usize> = again.iter().map(|op| op.0 as usize).collect();
        for (at, record) in self.records.iter_mut().enumerate().rev() {
            if matches!(record.act, Act::Restart { .. }) {
                break;
            }
            if !spared.contains(&at) {
                record.ended = record.ended.min(tick);
            }
        }
        self.open_reads.clear();
    }

    /// What is not answered is sent again, as if it were issued only now.
    pub(crate) fn issue_again(&mut self, op: OpId) {
        let tick = self.next_tick();
        let record = &mut self.records[op.0 as usize];
        assert!(record.ended == NEVER, "request {} is answered, and not sent again", op.0);
        record.issued = tick;
        if record.act == Act::Read {
            self.open_reads.push(tick);
        }
    }

    /// Whether the effect of `record` outlives any crash.
    pub(crate) fn is_durable(&self, record: &Record) -> bool {
        let by_itself = matches!(record.act, Act::Write { fua: true } | Act::Restart { durable: true });
        record.ok && (by_itself || record.ended < self.flushed)
    }

    /// The earliest issue of a read that is still open; now, where there is none.
    pub(crate) fn oldest_read(&self) -> Tick {
        self.open_reads.iter().copied().min().unwrap_or(self.tick)
    }
}
