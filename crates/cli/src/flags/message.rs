//! The flags of `forebay message`.

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
