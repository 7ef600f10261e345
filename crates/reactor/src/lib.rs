//! One thread's engine: the plug that gathers requests, the turn that lets them go, the backend
//! that carries them out, and the jobs that wait for them.
//!
//! ```text
//!   mailbox ─▶ poll ready jobs ── submit ─▶ plug ─▶ sort, merge ─▶ backend.enter ─▶ Bio::end ─▶ wake
//! ```
//!
//! What comes before: a device's `submit`. What comes after: the kernel, through a
//! [`Backend`]. This crate knows only `forebay-block`.
#![deny(unsafe_code)]

pub mod backend;
pub mod job;
pub mod mailbox;
mod plug;
pub mod pool;
pub mod request;
mod stream;
pub mod threads;
mod timer;
pub mod turn;
pub mod uring;

pub use backend::{Backend, Done, Engine, Wait, engine};
pub use job::JobPool;
pub use pool::{Buffer, BufferPool, Region};
pub use request::{DeviceId, Kind, Part, Request, Requests, Tag};
pub use stream::Step;
pub use threads::{Crew, Helper, Threads};
pub use timer::Sleep;
pub use turn::{Attachment, Carrier, DeviceCounts, Inline, Reactor, TurnCounts, WeakReactor};
pub use uring::Uring;
