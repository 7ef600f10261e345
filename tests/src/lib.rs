//! What the tests of the real binary share: real tools, real kernels, scratch folders, patterns.
//!
//! ```text
//!  clients/   commands/                                    kernels/
//!        └─────────────┬───────────────┘                          │
//!  requires ▶ Scratch ▶ Server (the built `forebay`) ◀── nbd::Client
//!                        kills ▶ foreign::Attached (nbdfuse ▶ loop device) ▶ file system
//!                                          Guest (user-mode-linux) ▶ guest-load ▶ pattern
//!                                          writecache, mirror (their formats, read by hand)
//! ```
//!
//! 1. A missing tool is a failure that names the tool; no test skips itself.
//! 2. Every process that a test starts dies with the test's thread, and every wait has a limit, which a busy machine does not reach.
//! 3. The oracle shares no code with what it judges: `writecache` and `nbd` know the formats on their own.
//!
//! These are tests: anything unexpected panics with what was run and what it said.
#![forbid(unsafe_code)]
#![allow(clippy::missing_panics_doc, reason = "a test's helper reports by panicking")]
#![allow(clippy::must_use_candidate, reason = "many helpers are called for what they do as well as for what they return")]

pub mod foreign;
pub mod guest;
pub mod kills;
pub mod mirror;
pub mod nbd;
pub mod pattern;
pub mod requires;
pub mod run;
pub mod scratch;
pub mod server;
pub mod writecache;

pub use guest::Guest;
pub use requires::{require, require_root};
pub use scratch::Scratch;
pub use server::Server;
