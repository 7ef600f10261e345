//! What `forebay message` takes.

use clap::{Args, ValueEnum};

use super::Reach;

/// `forebay message`.
#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub struct MessageFlags {
    /// The device; may be left out where the server has one
    pub device: Option<String>,
    /// The message
    #[arg(value_enum, ignore_case = true)]
    pub word: MessageWord,
    /// The server.
    #[command(flatten)]
    pub reach: Reach,
}

/// What can be said to a write cache, or to a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum MessageWord {
    /// Write everything back, and wait for that
    Flush,
    /// Write everything back when the device is suspended the next time
    FlushOnSuspend,
    /// Write everything back, and take in nothing new
    Cleaner,
    /// Count from zero again
    ClearStats,
    /// Mirror: compare all legs, wait for that, and say what differs
    Scrub,
    /// Mirror: the same, and copy what differs from the first good leg
    ScrubRepair,
    /// Mirror: try legs again that failed, and bring them up to date
    Revive,
    /// Mirror: let go the writes that wait until somebody knows of a leg's failure
    Release,
}
