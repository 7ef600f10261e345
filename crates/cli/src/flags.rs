//! The one table of commands and options: help, man pages and completions all come from it.

mod copy;
mod message;

use std::num::NonZero;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use forebay::Engine;
use forebay_export::uri::Uri;

pub use self::copy::{CompareFlags, CopyFlags};
pub use self::message::MessageFlags;

/// A block layer in userspace that gathers small I/O into few large requests.
///
/// `forebay serve` without arguments serves a 1 GiB disk with a persistent write-back cache from
/// files in ./forebay-data.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, propagate_version = true, disable_help_subcommand = true)]
pub struct Flags {
    /// Say more on standard error: -v what happens, -vv details. `RUST_LOG` is heard, too.
    #[arg(short, long, action = ArgAction::Count, global = true)]
    pub verbose: u8,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `forebay serve` does beyond its options.
const SERVE_HELP: &str = "\
Without --table and --config, a 1 GiB disk in ./forebay-data/origin.img is served through a 256 MiB write cache in \
./forebay-data/cache.img; both are made where missing.

Targets of a table are linear, striped, error, delay, flakey, log-writes, stats, mirror and writecache, with the arguments of the \
kernel's device mapper, and zram, a compressed RAM disk: `0 2097152 zram algo=zstd mem_limit=256M`. A device is the path of a file or block device, ram:SIZE or null:SIZE.

SIGTERM and SIGINT take no more clients, answer what is in flight, commit, and end with exit status 0; dirty data stays safe \
in the cache. A second signal ends the server at once, with exit status 1: whatever was flushed is safe then, too.

Sockets that a service manager passes (LISTEN_FDS) serve every device by its name, and readiness is told to NOTIFY_SOCKET.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve block devices over NBD
    #[command(after_help = SERVE_HELP)]
    Serve(ServeFlags),
    /// Show what a running server does, and what batching saves
    Status(StatusFlags),
    /// Send a message to a device's write caches or mirrors
    Message(MessageFlags),
    /// Hold a device's new requests back, with everything before them committed
    Suspend(DeviceFlags),
    /// Let a suspended device's requests in again
    Resume(DeviceFlags),
    /// Copy files and devices, to any number of destinations at once
    #[command(after_help = copy::COPY_HELP)]
    Copy(CopyFlags),
    /// Compare two files or devices: exit status 0 the same, 1 different, 2 an error
    #[command(after_help = "Messages and exit status are those of `qemu-img compare`. Where one is longer, the rest of it must \
                            be zero.")]
    Compare(CompareFlags),
    /// Look at, check or empty a cache that nobody serves
    Cache {
        /// What to do with it.
        #[command(subcommand)]
        command: CacheCommand,
    },
    /// Read and write the attributes of a compressed RAM disk
    Zram {
        /// What to do.
        #[command(subcommand)]
        command: ZramCommand,
    },
    /// Measure, with the limits beside the figures
    Bench {
        /// What to measure.
        #[command(subcommand)]
        command: BenchCommand,
    },
    /// Print completions for a shell
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Write man pages into a folder
    Man {
        /// The folder.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

/// `forebay serve`.
#[derive(Debug, Default, Args)]
pub struct ServeFlags {
    /// Line of the device's table: `START LENGTH TARGET ARGUMENTS`, as in `0 2048 linear disk.img 0`;
    /// may be given several times, or hold several lines separated by semicolons
    #[arg(long, value_name = "LINE")]
    pub table: Vec<String>,
    /// Where to serve, as an NBD URI such as `nbd+unix:///NAME?socket=PATH` or `nbd://127.0.0.1/NAME`;
    /// may be given several times
    #[arg(long, value_name = "URI")]
    pub export: Vec<Uri>,
    /// Name of the device in status and messages
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    pub name: Option<String>,
    /// Serve the devices of a TOML file
    #[arg(long, value_name = "FILE", conflicts_with = "table")]
    pub config: Option<PathBuf>,
    /// Socket for status, messages, suspend and resume
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// What carries out I/O
    #[arg(long, value_enum)]
    pub engine: Option<EngineFlag>,
    /// Most threads that serve clients; by default one for each core, up to 4
    #[arg(long, value_name = "COUNT")]
    pub threads: Option<NonZero<u8>>,
    /// Write everything back before leaving, instead of keeping dirty data in the cache
    #[arg(long)]
    pub drain: bool,
    /// Let clients read only
    #[arg(long)]
    pub read_only: bool,
    /// Write the process id here once the server is ready; removed when it leaves
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// Listen on addresses that other machines reach; there is neither encryption nor a password
    #[arg(long)]
    pub allow_remote: bool,
}

/// What carries out I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineFlag {
    /// `io_uring` where it is allowed, else threads
    Auto,
    /// `io_uring` or nothing
    Uring,
    /// Threads, even where `io_uring` is allowed
    Threads,
}

impl From<EngineFlag> for Engine {
    fn from(flag: EngineFlag) -> Self {
        match flag {
            EngineFlag::Auto => Self::Auto,
            EngineFlag::Uring => Self::Uring,
            EngineFlag::Threads => Self::Threads,
        }
    }
}

/// How to reach a running server.
#[derive(Debug, Args)]
pub struct Reach {
    /// Control socket of the server
    #[arg(long, value_name = "PATH", default_value = crate::embedded::CONTROL)]
    pub control: PathBuf,
}

/// `forebay status`.
#[derive(Debug, Args)]
pub struct StatusFlags {
    /// Only this device
    pub device: Option<String>,
    /// Print one JSON object
    #[arg(long, conflicts_with = "line")]
    pub json: bool,
    /// Print the lines that the kernel's device mapper would
    #[arg(long)]
    pub line: bool,
    /// The server.
    #[command(flatten)]
    pub reach: Reach,
}

/// `forebay suspend` and `forebay resume`.
#[derive(Debug, Args)]
pub struct DeviceFlags {
    /// The device; may be left out where the server has one
    pub device: Option<String>,
    /// The server.
    #[command(flatten)]
    pub reach: Reach,
}

/// What `forebay zram` does.
const ZRAM_HELP: &str = "\
Names, values and formats are those of the kernel's /sys/block/zramN. To read: backing_dev, bd_stat, block_state, \
comp_algorithm, debug_stat, disksize, initstate, io_stat, max_comp_streams, mm_stat, writeback_batch_size, writeback_limit, \
writeback_limit_enable. To write: compact, idle (all, or an age in seconds), mem_limit, mem_used_max (0), reset (1), \
writeback (idle, huge, huge_idle, incompressible, page_index=N, page_indexes=LO-HI), writeback_batch_size, writeback_limit, \
writeback_limit_enable.";

/// The commands for compressed RAM disks.
#[derive(Debug, Subcommand)]
pub enum ZramCommand {
    /// Show the compressed RAM disks of a server in the columns of zramctl
    Status(ZramStatusFlags),
    /// Show what each codec would make of the data of some files
    Advise {
        /// Files or block devices; pages from all over them are looked at
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Print an attribute
    #[command(after_help = ZRAM_HELP)]
    Get(ZramGetFlags),
    /// Write an attribute, and wait until what that asks for is done
    #[command(after_help = ZRAM_HELP)]
    Set(ZramSetFlags),
    /// Save the whole disk to a file, which is there in whole or not at all; writes wait meanwhile
    Save(ZramImageFlags),
    /// Restore a disk that is empty from a file that was saved
    Restore(ZramImageFlags),
}

/// `forebay zram save` and `forebay zram restore`.
#[derive(Debug, Args)]
pub struct ZramImageFlags {
    /// The device
    pub device: String,
    /// The file
    pub file: PathBuf,
    /// The server.
    #[command(flatten)]
    pub reach: Reach,
}

/// `forebay zram status`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "switches are independent of each other")]
pub struct ZramStatusFlags {
    /// Only this device
    pub device: Option<String>,
    /// Print sizes in bytes
    #[arg(short, long)]
    pub bytes: bool,
    /// Leave the heading out
    #[arg(short, long)]
    pub noheadings: bool,
    /// Columns to print, separated by commas
    #[arg(short, long, value_name = "LIST", value_delimiter = ',')]
    pub output: Vec<String>,
    /// Print all columns
    #[arg(long, conflicts_with = "output")]
    pub output_all: bool,
    /// Print single spaces between columns
    #[arg(long)]
    pub raw: bool,
    /// The server.
    #[command(flatten)]
    pub reach: Reach,
}

/// `forebay zram get`.
#[derive(Debug, Args)]
pub struct ZramGetFlags {
    /// The device
    pub device: String,
    /// The attribute, such as `mm_stat`
    pub name: String,
    /// The server.
    #[command(flatten)]
    pub reach: Reach,
}

/// `forebay zram set`.
#[derive(Debug, Args)]
pub struct ZramSetFlags {
    /// The device
    pub device: String,
    /// The attribute, such as `idle` or `writeback`
    pub name: String,
    /// What to write; several words are one value
    #[arg(required = true, num_args = 1..)]
    pub value: Vec<String>,
    /// The server.
    #[command(flatten)]
    pub reach: Reach,
}

/// The commands for caches that nobody serves.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// Print the geometry of a cache and what is in it, as ranges
    Dump(DumpFlags),
    /// Check a cache without changing it: exit status 0 clean, 1 repairable, 2 damaged
    #[command(after_help = "Repairable are blocks that were never committed and blocks that have a newer copy: what a \
                            crash leaves behind. The next opening mends them. Damaged is also what cannot be a cache: \
                            too short, or something else. A file that cannot be opened or read gives exit status 2, too, \
                            with a sentence on standard error: 1 always means that the cache opens.")]
    Check(CheckFlags),
    /// Write everything in a cache back to its origin
    Flush(FlushFlags),
}

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Large random writes through the write cache, in memory or on files
    Writecache(WritecacheFlags),
    /// Idle pages of a compressed RAM disk written back to a file, one by one and in batches
    Zram(ZramBenchFlags),
    /// Requests that borrow their segment array, beside requests that copy it
    Bvec(BvecFlags),
}

/// `forebay bench bvec`.
///
/// Random reads of a device that completes at once and merges nothing, through a table and a linear
/// target, 128 arrays of 4 KiB segments in turns, 32 requests a batch. Rates are thousands of
/// requests per second of one core's time; ratios are taken repetition by repetition.
///
/// With --dir: processor time of random reads and writes of two files with direct I/O at depth 32,
/// with registered memory and files and without.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct BvecFlags {
    /// Request sizes in bytes, powers of two from 512 to 1048576; all that are compared where not given
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = request_size)]
    pub block_size: Vec<u32>,
    /// Use files of 256 MiB in this folder, with direct I/O
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Write a page with a plot to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// The size of a request of `forebay bench bvec`.
fn request_size(text: &str) -> Result<u32, String> {
    let size = text.parse().ok().filter(|size: &u32| size.is_power_of_two() && (512..=1 << 20).contains(size));
    size.ok_or_else(|| format!("{text} is not a power of two from 512 to 1048576"))
}

/// `forebay bench zram`.
///
/// Fills a compressed RAM disk with 4 KiB random writes of data that is compressible by 60 %, marks
/// everything idle and writes it back to a file: page by page, 32 pages a write, and by default. The
/// bare file is written page by page and with large writes in the same run.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ZramBenchFlags {
    /// Bytes that the job writes, as in 400M or 4G; memory for nearly half of it is needed
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = bytes)]
    pub size: u64,
    /// File or block device to write to, whose content is lost; a new file in this folder where not given
    #[arg(long, value_name = "FILE")]
    pub backing: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `forebay bench writecache`.
///
/// Writes blocks of 512 KiB in random order at depth 32, each once, and measures in turn: a plain
/// memory copy, the bare RAM device, the cache with one request for each of its blocks, the cache
/// with extended requests. Speeds are medians in MiB/s; ratios are taken repetition by repetition.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct WritecacheFlags {
    /// Bytes that the job writes, from 512K to 1024G, as in 400M; memory for 5 times as much is needed
    #[arg(long, value_name = "SIZE", default_value = "400M", value_parser = job_bytes)]
    pub size: u64,
    /// Cache block sizes in bytes, from 512 to 65536; all eight where not given
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = block_bytes)]
    pub block_size: Vec<u32>,
    /// Also age a full cache with 2.1 GiB of mixed writes, and measure what became of its free space
    #[arg(long)]
    pub aged: bool,
    /// Use files in this folder with direct I/O instead of memory
    #[arg(long, value_name = "DIR", conflicts_with = "aged")]
    pub dir: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Write a page with a plot to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// The bytes of a job: at least one request, and not so many that sizes overflow.
fn job_bytes(text: &str) -> Result<u64, String> {
    let bytes = bytes(text)?;
    if ((512 << 10)..=(1 << 40)).contains(&bytes) { Ok(bytes) } else { Err("give 512K to 1024G".to_owned()) }
}

/// The size of a cache block.
fn block_bytes(text: &str) -> Result<u32, String> {
    let bytes = text.parse().ok().filter(|bytes: &u32| bytes.is_power_of_two() && (512..=65_536).contains(bytes));
    bytes.ok_or_else(|| "give a power of two from 512 to 65536".to_owned())
}

/// A size in bytes with an optional suffix K, M or G (powers of 1024).
fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text} is not a size such as 400M"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too large"))
}

/// Where a cache is.
#[derive(Debug, Args)]
pub struct CachePlace {
    /// The cache: a file or block device
    #[arg(value_name = "CACHE")]
    pub cache: PathBuf,
    /// Sectors of 512 bytes in front of the cache
    #[arg(long, value_name = "SECTORS", default_value_t = 0)]
    pub start_sector: u64,
    /// Its side file; CACHE.side where there is one
    #[arg(long, value_name = "PATH")]
    pub side: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `forebay cache dump`.
#[derive(Debug, Args)]
pub struct DumpFlags {
    /// Where it is.
    #[command(flatten)]
    pub place: CachePlace,
}

/// `forebay cache check`.
#[derive(Debug, Args)]
pub struct CheckFlags {
    /// Where it is.
    #[command(flatten)]
    pub place: CachePlace,
    /// Its origin, so that blocks beyond the origin's end are found, too
    #[arg(value_name = "ORIGIN")]
    pub origin: Option<PathBuf>,
}

/// `forebay cache flush`.
#[derive(Debug, Args)]
pub struct FlushFlags {
    /// Where it is.
    #[command(flatten)]
    pub place: CachePlace,
    /// Its origin
    #[arg(value_name = "ORIGIN")]
    pub origin: PathBuf,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_table_of_options_holds_together() {
        Flags::command().debug_assert();
    }
}
