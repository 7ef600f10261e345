//! What an export did so far, in numbers that only grow but for the open connections.

/// Counters of one export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportCounts {
    /// Connections that use the export now.
    pub connections: u64,
    /// Connections that ever used it.
    pub connections_total: u64,
    /// READ requests.
    pub reads: u64,
    /// WRITE requests.
    pub writes: u64,
    /// FLUSH requests.
    pub flushes: u64,
    /// TRIM requests.
    pub trims: u64,
    /// `WRITE_ZEROES` requests.
    pub zeroes: u64,
    /// CACHE and `BLOCK_STATUS` requests.
    pub others: u64,
    /// Requests that changed part of a block, so that the rest had to be read first.
    pub unaligned: u64,
    /// Requests that were answered with an error.
    pub errors: u64,
    /// Bytes sent to clients as data of reads.
    pub bytes_read: u64,
    /// Bytes received from clients as data of writes.
    pub bytes_written: u64,
    /// Receive calls.
    pub receives: u64,
    /// Send calls.
    pub sends: u64,
    /// Replies sent; divided by `sends`, how well replies were gathered.
    pub replies: u64,
}
