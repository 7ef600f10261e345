//! The seeded mix of requests: how large, where, how many at once, how often what.
//!
//! Units: sectors of 512 bytes; weights are relative to each other.

use std::ops::Range;

use fastrand::Rng;

/// Largest request: 1 MiB.
const REQUEST_MAX: usize = 2048;

/// What a client asks next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A write with FUA.
    WriteFua,
    /// Zeroes without payload.
    Zeroes,
    /// A discard.
    Trim,
    /// A flush.
    Flush,
}

/// A mix of requests.
#[derive(Clone, Debug)]
pub struct Load {
    /// Size of the device under test.
    pub sectors: usize,
    /// Unit that large requests like to be multiples of.
    pub block_sectors: usize,
    /// Smallest request and unit of all: the device's logical block.
    pub grain: usize,
    /// Requests in flight at most.
    pub depth: usize,
    /// Read, write, FUA write, zeroes, trim, flush.
    pub weights: [u32; 6],
    /// Share of requests of up to 8 sectors, of one block, of a few blocks; the rest are large.
    pub sizes: [u32; 4],
    /// Percent of requests that go to `hot` instead of anywhere.
    pub hot_percent: u32,
    /// Where those go.
    pub hot: Range<usize>,
    /// Percent of requests that continue where the one before ended.
    pub sequential_percent: u32,
    /// Requests of a thousand that are preceded by a pause.
    pub pauses_per_mille: u32,
    /// Longest pause, milliseconds.
    pub pause_max_ms: u64,
    /// Disturbances among a thousand requests.
    pub disturb_per_mille: u32,
}

impl Load {
    /// A mix for a device of `sectors`.
    pub fn draw(rng: &mut Rng, sectors: usize, block_sectors: usize, grain: usize) -> Self {
        let hot_start = rng.usize(0..sectors);
        let hot_length = rng.usize(1..=sectors.div_ceil(8));
        let mut weights = [30, 60, 4, 3, 3, 5].map(|weight| if rng.u32(0..5) == 0 { 0 } else { rng.u32(1..=weight) });
        weights[1] = weights[1].max(5);
        Self {
            sectors,
            block_sectors,
            grain,
            depth: [1, 2, 4, 8, 16, 32][rng.usize(0..6)],
            weights,
            sizes: [rng.u32(0..40), rng.u32(1..40), rng.u32(0..20), rng.u32(0..2)],
            hot_percent: [0, 50, 90][rng.usize(0..3)],
            hot: hot_start..(hot_start + hot_length).min(sectors),
            sequential_percent: [0, 10, 80][rng.usize(0..3)],
            pauses_per_mille: [0, 5, 30][rng.usize(0..3)],
            pause_max_ms: [1, 50, 5_000][rng.usize(0..3)],
            disturb_per_mille: [0, 5, 20][rng.usize(0..3)],
        }
    }

    /// What to ask next.
    pub fn ask(&self, rng: &mut Rng) -> Ask {
        let asks = [Ask::Read, Ask::Write, Ask::WriteFua, Ask::Zeroes, Ask::Trim, Ask::Flush];
        let at = pick(rng, &self.weights);
        asks[at]
    }

    /// Which sectors; `last` is where the request before ended.
    pub fn sectors(&self, rng: &mut Rng, last: usize) -> Range<usize> {
        let length = self.length(rng).min(self.sectors).next_multiple_of(self.grain);
        let start = if rng.u32(0..100) < self.sequential_percent {
            last % self.sectors
        } else if rng.u32(0..100) < self.hot_percent {
            rng.usize(self.hot.clone())
        } else {
            rng.usize(0..self.sectors)
        };
        let aligned = length.is_multiple_of(self.block_sectors) && rng.u32(0..8) > 0;
        let unit = if aligned { self.block_sectors } else { self.grain };
        let start = (start - start % unit).min(self.sectors - length);
        let start = start - start % self.grain;
        start..start + length
    }

    fn length(&self, rng: &mut Rng) -> usize {
        match pick(rng, &self.sizes) {
            0 => rng.usize(1..=8),
            1 => self.block_sectors,
            2 => rng.usize(1..=8) * self.block_sectors.min(16),
            _ => rng.usize(1..=REQUEST_MAX),
        }
    }
}

fn pick(rng: &mut Rng, weights: &[u32]) -> usize {
    let mut left = rng.u32(0..weights.iter().sum());
    for (at, &weight) in weights.iter().enumerate() {
        if left < weight {
            return at;
        }
        left -= weight;
    }
    0
}
