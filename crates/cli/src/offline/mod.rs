//! `forebay cache`: work on a cache that nobody serves.
//!
//! ```text
//!   dump, check ─▶ open for reading ─▶ superblock ─▶ entries ─▶ ranges, verdict
//!   flush ───────▶ open for writing ─▶ the cache itself ─▶ drain ─▶ close
//! ```
//!
//! 1. Dump and check change nothing, and refuse a cache that a server has open.
//! 2. The block size comes from the superblock.
//! 3. A side file is looked for beside the cache where none is named. Dump and check only read it; flush
//!    uses it as a server does.

mod check;
mod dump;
mod flush;
mod media;
mod side;

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use forebay::{BufferPool, Engine, FileOptions, Reactor, engine};
use forebay_device::{DeviceError, FileDevice};

pub use self::check::check;
pub use self::dump::dump;
pub use self::flush::flush;
use crate::failure::{Failure, Outcome};

/// How long to wait for a server that is about to leave.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// Runs `work` on a reactor of its own.
fn run(work: impl AsyncFnOnce(&Reactor, &BufferPool) -> Outcome) -> Outcome {
    let backend = engine(Engine::Auto).map_err(|error| Failure::because("starting the engine", &error))?;
    let reactor = Reactor::new(backend);
    let pool = BufferPool::new(&reactor);
    let outcome = reactor.run(work(&reactor, &pool));
    reactor.clear();
    outcome.map_err(|error| Failure::because("the engine broke", &error))?
}

fn open(reactor: &Reactor, path: &Path) -> Result<Rc<FileDevice>, DeviceError> {
    let options = FileOptions { read_only: true, lock_wait: LOCK_WAIT, ..FileOptions::default() };
    FileDevice::open(reactor, path, &options)
}
