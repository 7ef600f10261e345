//! The options of the benchmarks.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Large random writes through the write cache, in memory or on files
    Writecache(WritecacheFlags),
    /// Idle pages of a compressed RAM disk written back to a file, one by one and in batches
    Zram(ZramBenchFlags),
    /// Sequential writes to a device with a fresh snapshot, chunk by chunk and gathered
    Kcopyd(KcopydFlags),
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

/// `forebay bench kcopyd`.
///
/// Writes 512 KiB after 512 KiB at depth 8 to a device of which there is a fresh persistent snapshot,
/// with chunks of 4 KiB, 32 KiB and 512 KiB, over RAM and over two files with direct I/O, and ends with
/// a flush: each chunk copied on its own by requests that nothing merges (off), as it comes (on), and
/// the same bytes read, written and written again by large requests (limit). Speeds are medians in
/// MiB/s; ratios are taken repetition by repetition.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct KcopydFlags {
    /// Bytes that the job writes, from 512K to 1024G; memory, and room in the folder, for twice as much is needed
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = job_bytes)]
    pub size: u64,
    /// The folder of the files
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Write a page with a plot to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// `forebay bench zram`.
///
/// Fills a compressed RAM disk with 4 KiB random writes of data that is compressible by 60 %, marks
/// everything idle and writes it back to a file: page by page, 32 pages a write, and by default. The
/// bare file is written page by page and with large writes in the same run.
///
/// With --plain: random writes and reads of a disk in memory, 4 KiB and 128 KiB, on one thread.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ZramBenchFlags {
    /// Bytes that the job writes, as in 400M or 4G; memory for nearly half of it is needed
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = bytes)]
    pub size: u64,
    /// File or block device to write to, whose content is lost; a new file in this folder where not given
    #[arg(long, value_name = "FILE")]
    pub backing: Option<PathBuf>,
    /// Measure plain writes and reads instead, without a backing device
    #[arg(long, conflicts_with = "backing")]
    pub plain: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Write a page with a plot to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
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
