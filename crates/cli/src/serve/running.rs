//! A server while it runs: its stacks, where they are served, and how it ends.
//!
//! ```text
//!   Plan ─▶ open stacks ─▶ listen ─▶ … ─▶ shut down ─▶ (drain) ─▶ close
//! ```
//!
//! 1. Stacks are open before anybody can connect, and closed after the last request was answered.

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::ToSocketAddrs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay::{BufferPool, Devices, DrainProgress, Engine, FileOptions, Reactor, Stack, engine};
use forebay_export::serve::{ExportCounts, Listen, Offer, ServeError, ServeLimits, Server};
use forebay_export::uri::{Endpoint, Uri};

use super::plan::{At, DevicePlan, Plan, Site, sites};
use crate::failure::Failure;

/// Exports on one server, and where they are found.
struct Serving {
    server: Server,
    exports: Vec<(String, usize)>,
}

/// An export as status shows it.
pub struct RunningExport {
    /// Index of its device.
    pub device: usize,
    /// Its name.
    pub name: String,
    /// What it did.
    pub counts: ExportCounts,
}

impl RunningExport {
    /// Requests taken in.
    pub fn requests(&self) -> u64 {
        let counts = &self.counts;
        counts.reads + counts.writes + counts.flushes + counts.trims + counts.zeroes + counts.others
    }
}

/// A running server.
pub struct Running {
    reactor: Reactor,
    stacks: Vec<Stack>,
    serving: Vec<Serving>,
    /// URIs, each with the index of its device.
    uris: Vec<(usize, String)>,
    leaving: Cell<bool>,
}

impl Running {
    /// Opens what `plan` names and starts to serve it.
    ///
    /// # Errors
    /// One sentence; what was opened is closed again.
    pub async fn start(reactor: &Reactor, pool: &BufferPool, plan: &Plan, sockets: Vec<OwnedFd>) -> Result<Self, Failure> {
        let sites = sites(&plan.exports)?;
        let mut running = Self {
            reactor: reactor.clone(),
            stacks: Vec::new(),
            serving: Vec::new(),
            uris: Vec::new(),
            leaving: Cell::new(false),
        };
        let started = Box::pin(running.start_all(pool, plan, sites, sockets)).await;
        if let Err(failure) = started {
            running.stop_serving().await;
            // The first failure is the one to report.
            let _ = running.close().await;
            return Err(failure);
        }
        Ok(running)
    }

    async fn start_all(
        &mut self,
        pool: &BufferPool,
        plan: &Plan,
        sites: Vec<Site>,
        sockets: Vec<OwnedFd>,
    ) -> Result<(), Failure> {
        let devices = Devices::new(&self.reactor, FileOptions::default());
        for device in &plan.devices {
            let stack = Stack::open_on(&devices, pool, &device.name, &device.table, device.read_only).await;
            let several = plan.devices.len() > 1;
            let front = if several { format!("device {}: ", device.name) } else { String::new() };
            let failed = |error: forebay::OpenError| Failure::Failed(format!("{front}{error}"));
            self.stacks.push(stack.map_err(failed)?);
        }
        self.stacks.iter().for_each(Stack::begin);
        let mut sockets = VecDeque::from(sockets);
        for site in sites {
            let mut limits = ServeLimits::default();
            if let Some(threads) = plan.threads {
                limits.annexes_max = threads - 1;
            }
            let server = Server::new(&self.reactor, pool, limits);
            let choice = if self.reactor.backend_name() == "threads" { Engine::Threads } else { Engine::Uring };
            server.use_threads(Arc::new(move || engine(choice)));
            self.offer(&server, &site, &plan.devices)?;
            let listens = self.listen(&server, &site, plan, &mut sockets);
            // Even a server that listens in part only must be shut down later.
            self.serving.push(Serving { server, exports: site.exports });
            listens?;
        }
        self.uris.sort_by_key(|(device, _)| *device);
        Ok(())
    }

    fn offer(&self, server: &Server, site: &Site, devices: &[DevicePlan]) -> Result<(), Failure> {
        let one_device = site.exports.iter().all(|(_, device)| *device == site.exports[0].1);
        for (index, (name, device)) in site.exports.iter().enumerate() {
            let stack = &self.stacks[*device];
            let mut offer = Offer::new(name).described(&devices[*device].name);
            if devices[*device].read_only {
                offer = offer.read_only();
            }
            if one_device && index == 0 {
                offer = offer.as_default();
            }
            server.add_export(&offer, stack.table().clone()).map_err(|error| Failure::of(&error))?;
        }
        Ok(())
    }

    fn listen(&mut self, server: &Server, site: &Site, plan: &Plan, sockets: &mut VecDeque<OwnedFd>) -> Result<(), Failure> {
        for at in &site.places {
            let exports: Vec<_> = plan.exports.iter().filter(|export| export.at == *at).collect();
            let mut found = Vec::new();
            match at {
                At::Inherited => {
                    for socket in std::mem::take(sockets) {
                        found.push(server.listen(Listen::Inherited(socket)).map_err(|error| Failure::of(&error))?);
                    }
                }
                At::Endpoint(endpoint) => {
                    for listen in listens(endpoint, plan.allow_remote)? {
                        server.listen(listen).map_err(not_heard)?;
                    }
                    found.push(Uri { endpoint: endpoint.clone(), export: String::new() });
                }
            }
            for uri in found {
                let named = exports.iter().map(|export| (export.device, absolute(&uri.with_export(&export.name)).to_string()));
                self.uris.extend(named);
            }
        }
        Ok(())
    }

    /// The reactor that everything runs on.
    pub fn reactor(&self) -> &Reactor {
        &self.reactor
    }

    /// The devices.
    pub fn stacks(&self) -> &[Stack] {
        &self.stacks
    }

    /// URIs, each with the index of its device.
    pub fn uris(&self) -> &[(usize, String)] {
        &self.uris
    }

    /// What is served under which name, with its counts.
    pub fn exports(&self) -> Vec<RunningExport> {
        let mut exports = Vec::new();
        for serving in &self.serving {
            for ((name, device), (_, counts)) in serving.exports.iter().zip(serving.server.counts()) {
                exports.push(RunningExport { device: *device, name: name.clone(), counts });
            }
        }
        exports
    }

    /// Bytes that are in caches and not yet on their origins.
    pub fn dirty_bytes(&self) -> u64 {
        self.stacks.iter().map(Stack::dirty_bytes).sum()
    }

    /// Whether the server is about to end.
    pub fn is_leaving(&self) -> bool {
        self.leaving.get()
    }

    /// Takes no clients any more, answers what is in flight, and hangs up.
    pub async fn stop_serving(&self) {
        self.leaving.set(true);
        for serving in &self.serving {
            if !serving.server.shutdown().await {
                tracing::warn!("some requests were not answered in time: their clients are cut off");
            }
        }
    }

    /// Writes everything dirty back; `report` is told how far each device is.
    ///
    /// # Errors
    /// When something could not be written; the other devices are drained all the same.
    pub async fn drain(&self, every: Duration, mut report: impl FnMut(&str, DrainProgress)) -> Result<(), Failure> {
        let mut result = Ok(());
        for stack in self.stacks.iter().filter(|stack| stack.caches().next().is_some()) {
            let drained = Box::pin(stack.drain(every, |progress| report(stack.name(), progress))).await;
            result = result.and(drained.map_err(|error| Failure::Failed(format!("{} is not drained: {error}", stack.name()))));
        }
        result
    }

    /// Commits and closes every device.
    ///
    /// # Errors
    /// When something could not be made durable; the other devices are closed all the same.
    pub async fn close(&self) -> Result<(), Failure> {
        let mut result = Ok(());
        for stack in &self.stacks {
            let closed = Box::pin(stack.close()).await;
            result = result.and(closed.map_err(|error| Failure::of(&error)));
        }
        result
    }
}

/// Why nobody can connect, with the option that helps.
fn not_heard(error: ServeError) -> Failure {
    match error {
        ServeError::Exposed { address } => Failure::Failed(format!(
            "{address} is reachable from other machines, and there is neither encryption nor a password: \
             use a loopback address, or add --allow-remote"
        )),
        other => Failure::of(&other),
    }
}

/// The sockets to open for an endpoint: a host name may have several addresses.
fn listens(endpoint: &Endpoint, beyond_loopback: bool) -> Result<Vec<Listen>, Failure> {
    let (host, port) = match endpoint {
        Endpoint::Unix(path) => return Ok(vec![Listen::Unix(path.clone())]),
        Endpoint::Tcp { host, port } => (host, *port),
    };
    let addresses = (host.as_str(), port).to_socket_addrs();
    let addresses = addresses.map_err(|error| Failure::because(format!("looking up the host {host}"), &error))?;
    Ok(addresses.map(|address| Listen::Tcp { address, beyond_loopback }).collect())
}

/// Longest path of a unix socket, bytes.
const SOCKET_PATH_MAX: usize = 107;

/// The same URI, usable from any folder where its socket's path is short enough for that.
fn absolute(uri: &Uri) -> Uri {
    let Endpoint::Unix(path) = &uri.endpoint else { return uri.clone() };
    let whole = std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
    let abstract_name = path.as_os_str().as_encoded_bytes().first() == Some(&0);
    if abstract_name || whole.as_os_str().len() > SOCKET_PATH_MAX {
        return uri.clone();
    }
    Uri::unix(&whole, &uri.export)
}
