//! The flags of `forebay message` and `forebay wait`.

use clap::Args;

use super::Reach;

/// What can be said.
pub(super) const HELP: &str = "\
Messages to write caches:
  flush                   write everything back, and wait for that
  flush_on_suspend        write everything back when the device is suspended the next time
  cleaner                 write everything back, and take in nothing new
  clear_stats             count from zero again

Messages to mirrors:
  scrub                   compare all legs, wait for that, and say what differs
  scrub_repair            the same, and copy what differs from the first good leg
  revive                  try legs again that failed, and bring them up to date
  release                 let go the writes that wait until somebody knows of a leg's failure

Messages to clones:
  enable_hydration        hydrate regions that nobody writes to, those included that could not be copied before
  disable_hydration       hydrate only what is written
  hydration_threshold N   regions in hydration at which no further copy begins
  hydration_batch_size N  most adjacent regions in one copy
  hydration_rate N        most bytes that hydration begins in a second; 0 for any
  hydration_latency_us N  what requests may take before hydration steps back; 0 for any time";

/// `forebay message`.
#[derive(Debug, Args)]
pub struct MessageFlags {
    /// The device, which may be left out where the server has one; the message; its number, where it has one
    #[arg(value_name = "[DEVICE] MESSAGE [N]", required = true, num_args = 1..=3)]
    pub words: Vec<String>,
    /// The server.
    #[command(flatten)]
    pub reach: Reach,
}

/// What is waited for.
pub(super) const WAIT_HELP: &str = "\
Events of a device are counted from the start of the server; `forebay status` shows how many there were. Without EVENTS it is \
the first that is waited for, as `dmsetup wait` does; to wait for the next one, give the number that was printed last.

An event is raised when:
  mirror          a leg fails at something for the first time, the log fails, or all regions have come in sync
  snapshot        it becomes invalid, or full
  snapshot-merge  everything is merged, or merging failed
  clone           every region is hydrated, regions are left alone after several tries, or it becomes read-only

When the server ends first, the exit status is 1.";

/// `forebay wait`.
#[derive(Debug, Args)]
pub struct WaitFlags {
    /// The device; may be left out where the server has one
    pub device: Option<String>,
    /// Waits until there were more events than this
    #[arg(default_value_t = 0)]
    pub events: u64,
    /// The server.
    #[command(flatten)]
    pub reach: Reach,
}
