//! The one table of commands and options: help, man pages and completions all come from it.

mod bench;
mod copy;
mod message;

use std::num::NonZero;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use forebay::Engine;
use forebay_export::uri::Uri;

pub use self::bench::{BenchCommand, BvecFlags, KcopydFlags, WritecacheFlags, ZramBenchFlags};
pub use self::copy::{CompareFlags, CopyFlags};
pub use self::message::{MessageFlags, WaitFlags};

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

Targets of a table are linear, striped, error, delay, flakey, log-writes, stats, mirror, clone and writecache, with the arguments of the \
kernel's device mapper, and zram, a compressed RAM disk: `0 2097152 zram algo=zstd mem_limit=256M`. A device is the path of a file or block device, ram:SIZE, null:SIZE, or an NBD server: nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH.

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
    /// Send a message to a device's write caches, mirrors or clones
    #[command(after_help = message::HELP)]
    Message(MessageFlags),
    /// Wait until something happens to a device's mirrors, snapshots or clones, and print its number
    #[command(after_help = message::WAIT_HELP)]
    Wait(WaitFlags),
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
#[expect(clippy::struct_excessive_bools, reason = "independent switches, each asked for by itself")]
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
    /// Folder in which messages may name files, as `forebay zram save` does; may be given several times
    #[arg(long, value_name = "FOLDER")]
    pub allow_path: Vec<PathBuf>,
    /// Keep the right to open any file and port; by default the server lets go of all but those that it is told of
    #[arg(long)]
    pub no_sandbox: bool,
}

/// What carries out I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
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
