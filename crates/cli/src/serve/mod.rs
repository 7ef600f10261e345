//! `forebay serve`: from the command line to a clean end.
//!
//! ```text
//!   plan ─▶ open, listen ─▶ READY ─▶ serve … signal ─▶ STOPPING ─▶ answer, drain, commit ─▶ exit 0
//! ```
//!
//! 1. Signals are caught before anything is opened and heard as soon as it is; a second one always
//!    ends the process at once.
//! 2. The server lets go of what it does not need before anything is opened.
//! 3. The exit status is 0 only when everything that was answered is durable.

mod hints;
mod live;
mod plan;
mod running;
mod sandbox;
mod service;
mod signals;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use forebay::{BufferPool, CacheLayer, DrainProgress, Reactor, Stack, engine};

pub use self::plan::Plan;
pub use self::running::{Running, RunningExport};
use self::service::PidFile;
use self::signals::Signals;
use crate::control::ControlSocket;
use crate::failure::{Failure, Outcome, say};
use crate::flags::ServeFlags;
use crate::{embedded, figures};

/// Serves until a signal comes.
pub fn run(flags: ServeFlags) -> Outcome {
    let sockets = service::sockets()?;
    let plan = Plan::new(flags, !sockets.is_empty())?;
    let signals = Signals::catch().map_err(|error| Failure::because("listening for signals", &error))?;
    if plan.embedded {
        embedded::make()?;
    }
    if plan.sandbox {
        sandbox::enter(&plan)?;
    }
    let backend = engine(plan.engine).map_err(|error| Failure::because("starting the engine", &error))?;
    let reactor = Reactor::new(backend);
    let pool = BufferPool::new(&reactor);
    let served = reactor.run(serve(&reactor, &pool, &plan, sockets, &signals));
    reactor.clear();
    served.map_err(|error| Failure::because("the engine broke", &error))?
}

async fn serve(
    reactor: &Reactor,
    pool: &BufferPool,
    plan: &Plan,
    sockets: Vec<std::os::fd::OwnedFd>,
    signals: &Signals,
) -> Outcome {
    let running = Rc::new(Running::start(reactor, pool, plan, sockets).await?);
    let begun = begin(&running, pool, plan);
    let result = match begun {
        Ok(_held) => {
            signals.arrived(reactor).await;
            service::stopping();
            Box::pin(leave(&running, plan.drain)).await
        }
        Err(failure) => {
            // The first failure is the one to report.
            let _ = Box::pin(leave(&running, false)).await;
            Err(failure)
        }
    };
    result.map(|()| ExitCode::SUCCESS)
}

/// What exists while the server runs, and goes when it leaves.
type Held = (Option<ControlSocket>, Option<PidFile>);

/// Opens the control socket and tells everybody that the server is ready.
fn begin(running: &Rc<Running>, pool: &BufferPool, plan: &Plan) -> Result<Held, Failure> {
    let control = plan.control.as_ref().map(|path| ControlSocket::open(path, running, pool)).transpose()?;
    let terminal = std::io::stdout().is_terminal();
    say(&hints::ready(running, plan, terminal || plan.embedded))?;
    let pid_file = plan.pid_file.as_ref().map(|path| PidFile::write(path)).transpose()?;
    let uris: Vec<_> = running.uris().iter().map(|(_, uri)| uri.as_str()).collect();
    service::ready(&format!("serving {}", uris.join(" ")));
    if terminal && !running.reactor().spawn(live::show(Rc::clone(running))) {
        tracing::warn!("no live figures: the reactor has too many tasks");
    }
    Ok((control, pid_file))
}

/// Ends everything in order.
async fn leave(running: &Running, drain: bool) -> Result<(), Failure> {
    if std::io::stdout().is_terminal() {
        say("\r\x1b[K")?;
    }
    running.stop_serving().await;
    let drained = if drain { drain_all(running).await } else { Ok(()) };
    running.close().await?;
    for stack in running.stacks() {
        say(&farewell(stack))?;
    }
    drained
}

/// How often a drain tells how far it is: on a terminal, and elsewhere.
const PROGRESS_EVERY: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(5)];

async fn drain_all(running: &Running) -> Result<(), Failure> {
    let terminal = std::io::stdout().is_terminal();
    let [often, seldom] = PROGRESS_EVERY;
    let every = if terminal { often } else { seldom };
    running
        .drain(every, |name, progress| {
            let line = progress_line(name, progress);
            let last = progress.left_bytes == 0;
            let (start, end) = if terminal { ("\r", if last { "\x1b[K\n" } else { "\x1b[K" }) } else { ("", "\n") };
            // Progress that nobody reads does not stop the drain.
            let _ = say(&format!("{start}{line}{end}"));
        })
        .await
}

/// How far a drain is, for people.
pub fn progress_line(name: &str, progress: DrainProgress) -> String {
    let left = figures::bytes(progress.left_bytes);
    if progress.left_bytes == 0 {
        let written = figures::bytes(progress.at_start_bytes);
        return format!("{name}: {written} written back in {}", figures::span(progress.elapsed));
    }
    match progress.time_left() {
        Some(time) => format!("{name}: {left} to write back, about {} left", figures::span(time)),
        None => format!("{name}: {left} to write back"),
    }
}

/// What stays behind in a stack's caches.
fn farewell(stack: &Stack) -> String {
    let name = stack.name();
    let line = |layer: CacheLayer| {
        let (fast, dirty) = (layer.fast, layer.status.dirty);
        if dirty == 0 {
            return format!("{name}: the cache {fast} is empty: {} has everything\n", layer.origin);
        }
        let size = figures::bytes(dirty * u64::from(layer.status.block_bytes));
        format!("{name}: {} ({size}) stay in the cache {fast}, safe\n", figures::blocks(dirty))
    };
    stack.status().caches.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_tells_what_is_left() {
        let progress =
            |left_bytes, seconds| DrainProgress { at_start_bytes: 4096, left_bytes, elapsed: Duration::from_secs(seconds) };
        assert_eq!(progress_line("disk", progress(4096, 0)), "disk: 4 KiB to write back");
        assert_eq!(progress_line("disk", progress(1024, 3)), "disk: 1 KiB to write back, about 1 s left");
        assert_eq!(progress_line("disk", progress(0, 61)), "disk: 4 KiB written back in 1 min 1 s");
    }
}
