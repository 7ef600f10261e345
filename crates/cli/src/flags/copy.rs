//! The options of `forebay copy` and `forebay compare`; those that nbdcopy and qemu-img have are called as
//! there.

use std::num::{NonZero, NonZeroU64};
use std::path::PathBuf;

use clap::Args;

use super::EngineFlag;

/// What `forebay copy` does beyond its options.
pub(super) const COPY_HELP: &str = "\
SRC and DST are files, block devices, NBD servers (nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH), ram:SIZE, null:SIZE, or - for standard input and output; null: swallows everything. \
With several destinations the source is read once. No end may be another one, or be locked or mounted by others.

A destination that is missing or empty is made as large as the source. One that is there is written in place: it must be \
large enough, what lies behind the copy stays, and zeroes are written to it unless --destination-is-zero says that they are \
there. Nothing is written before all ends are found to fit.

A copy that ends with exit status 0 is durable, new names of files included. What cannot be read is told to the sector and \
leaves the destinations as they were there. Exit status 1 is an error, 2 wrong usage.";

/// `forebay copy`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "switches are independent of each other")]
pub struct CopyFlags {
    /// What to copy
    #[arg(value_name = "SRC")]
    pub source: String,
    /// Where to
    #[arg(value_name = "DST", required = true)]
    pub destinations: Vec<String>,
    /// Leave destinations fully allocated: no holes are made
    #[arg(long)]
    pub allocated: bool,
    /// Most connections to a server, where it allows several
    #[arg(short = 'C', long, value_name = "COUNT", default_value = "4")]
    pub connections: NonZero<u8>,
    /// Take the destinations for zero where they are not written yet
    #[arg(long, visible_alias = "target-is-zero")]
    pub destination_is_zero: bool,
    /// Make the copy durable; always done
    #[arg(long)]
    pub flush: bool,
    /// Read the holes of the source, too
    #[arg(long)]
    pub no_extents: bool,
    /// Show progress even where standard error is no terminal
    #[arg(short, long)]
    pub progress: bool,
    /// Most bytes in flight
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = queue_bytes)]
    pub queue_size: u64,
    /// Largest request, from 4K to 32M, a multiple of 4K
    #[arg(long, value_name = "SIZE", default_value = "512K", value_parser = request_bytes)]
    pub request_size: u32,
    /// Most requests in flight
    #[arg(short = 'R', long, value_name = "COUNT", default_value = "32")]
    pub requests: NonZero<u16>,
    /// Find zeroes of at least this size in the data and make holes of them; 0 for not looking
    #[arg(short = 'S', long, value_name = "SIZE", default_value = "4K", value_parser = sparse_bytes)]
    pub sparse: u32,
    /// Most bytes per second
    #[arg(long, value_name = "SIZE", value_parser = rate_bytes)]
    pub rate: Option<NonZeroU64>,
    /// Read everything back and compare it with the source
    #[arg(long)]
    pub verify: bool,
    /// Print the SHA-256 of what was copied
    #[arg(long)]
    pub checksum: bool,
    /// Keep a journal in this file, and go on where a copy that was cut off has got to
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Go on after errors, and copy what can be copied; not with --checksum or -
    #[arg(long)]
    pub keep_going: bool,
    /// Let the kernel copy from file to file where it can, and share blocks with the source where it can do that
    #[arg(long, conflicts_with_all = ["no_offload", "allocated", "checksum", "rate", "resume"])]
    pub offload: bool,
    /// Read and write everything; always so unless --offload is given
    #[arg(long)]
    pub no_offload: bool,
    /// What carries out I/O
    #[arg(long, value_enum, default_value = "auto")]
    pub engine: EngineFlag,
}

/// `forebay compare`.
#[derive(Debug, Args)]
pub struct CompareFlags {
    /// One
    #[arg(value_name = "A")]
    pub first: String,
    /// The other
    #[arg(value_name = "B")]
    pub second: String,
    /// Different sizes are a difference even where the rest is zero, and so is what one has allocated and the
    /// other has not
    #[arg(short, long)]
    pub strict: bool,
    /// Show progress even where standard error is no terminal
    #[arg(short, long)]
    pub progress: bool,
    /// Say nothing: only the exit status counts
    #[arg(short, long)]
    pub quiet: bool,
}

fn size(text: &str) -> Result<u64, String> {
    forebay::parse_bytes(text).ok_or_else(|| format!("{text} is not a size such as 512K"))
}

fn queue_bytes(text: &str) -> Result<u64, String> {
    size(text).and_then(|bytes| if bytes > 0 { Ok(bytes) } else { Err("give more than 0".to_owned()) })
}

fn request_bytes(text: &str) -> Result<u32, String> {
    let fits = |bytes: &u64| (4096..=32 << 20).contains(bytes) && bytes.is_multiple_of(4096);
    let bytes = size(text)?;
    u32::try_from(bytes).ok().filter(|_| fits(&bytes)).ok_or_else(|| "give a multiple of 4K from 4K to 32M".to_owned())
}

fn sparse_bytes(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    let fits = bytes == 0 || ((512..=32 << 20).contains(&bytes) && bytes.is_power_of_two());
    u32::try_from(bytes).ok().filter(|_| fits).ok_or_else(|| "give 0, or a power of two from 512 to 32M".to_owned())
}

fn rate_bytes(text: &str) -> Result<NonZeroU64, String> {
    NonZeroU64::new(size(text)?).ok_or_else(|| "give more than 0".to_owned())
}
