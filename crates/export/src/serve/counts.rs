//! What an export did so far, in numbers that only grow but for the open connections.
//!
//! Each thread that serves an export counts for itself; who asks gets the sum.

use std::sync::atomic::{AtomicU64, Ordering};

/// One number, written by one thread and read by any.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn take_off(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counts {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// Counters of one export.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct ExportCounts {
            $($(#[$about])* pub $name: u64,)*
        }

        /// The counters of one export on one thread.
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: Counter,)*
        }

        impl Counters {
            /// Adds what was counted here.
            pub(super) fn add_to(&self, sum: &mut ExportCounts) {
                $(sum.$name += self.$name.get();)*
            }
        }
    };
}

counts! {
    /// Connections that use the export now.
    connections,
    /// Connections that ever used it.
    connections_total,
    /// READ requests.
    reads,
    /// WRITE requests.
    writes,
    /// FLUSH requests.
    flushes,
    /// TRIM requests.
    trims,
    /// `WRITE_ZEROES` requests.
    zeroes,
    /// CACHE and `BLOCK_STATUS` requests.
    others,
    /// Requests that changed part of a block, so that the rest had to be read first.
    unaligned,
    /// Requests that were answered with an error.
    errors,
    /// Bytes sent to clients as data of reads.
    bytes_read,
    /// Bytes received from clients as data of writes.
    bytes_written,
    /// Receive calls.
    receives,
    /// Send calls.
    sends,
    /// Replies sent; divided by `sends`, how well replies were gathered.
    replies,
}
