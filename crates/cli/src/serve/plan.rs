//! What is to be served: from flags, a configuration, or nothing at all.
//!
//! Everything that can be wrong whatever the disks hold is found here, before anything is opened.

use std::path::PathBuf;

use forebay::{Engine, TableText};
use forebay_export::uri::{Endpoint, Uri};

use crate::config::Config;
use crate::embedded;
use crate::failure::Failure;
use crate::flags::ServeFlags;

/// A device to open.
#[derive(Debug)]
pub struct DevicePlan {
    /// Its name in status and messages.
    pub name: String,
    /// Its table.
    pub table: TableText,
    /// Whether clients may only read.
    pub read_only: bool,
}

/// Where an export is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// At an address or path.
    Endpoint(Endpoint),
    /// At the sockets that the service manager passed.
    Inherited,
}

/// A name under which a device is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportPlan {
    /// Index of the device.
    pub device: usize,
    /// The name; empty for the default export.
    pub name: String,
    /// Where.
    pub at: At,
}

/// All that a server does.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches, each asked for by itself")]
pub struct Plan {
    /// What is opened, at least one.
    pub devices: Vec<DevicePlan>,
    /// What is served, at least one.
    pub exports: Vec<ExportPlan>,
    /// Control socket.
    pub control: Option<PathBuf>,
    /// What carries out I/O.
    pub engine: Engine,
    /// Most threads that serve clients, at least 1.
    pub threads: Option<usize>,
    /// Whether everything is written back before leaving.
    pub drain: bool,
    /// Where the process id goes.
    pub pid_file: Option<PathBuf>,
    /// Whether addresses that other machines reach are allowed.
    pub allow_remote: bool,
    /// Whether the server lets go of all that it does not need.
    pub sandbox: bool,
    /// Folders beyond those named elsewhere that messages may name.
    pub allow_path: Vec<PathBuf>,
    /// Whether it is the embedded default, whose files are made where missing.
    pub embedded: bool,
}

impl Plan {
    /// What `flags` ask for; `inherited` says whether the service manager passed sockets.
    ///
    /// # Errors
    /// [`Failure::Usage`]; [`Failure::Failed`] when the configuration cannot be read.
    pub fn new(flags: ServeFlags, inherited: bool) -> Result<Self, Failure> {
        match &flags.config {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| Failure::because(format!("reading the configuration {}", path.display()), &error))?;
                let config = Config::parse(&text).map_err(|problem| Failure::Usage(format!("{}: {problem}", path.display())))?;
                Self::from_config(config, flags, inherited)
            }
            None => Self::from_flags(flags, inherited),
        }
    }

    fn from_flags(flags: ServeFlags, inherited: bool) -> Result<Self, Failure> {
        let embedded = flags.table.is_empty();
        let name = flags.name.unwrap_or_else(|| embedded::NAME.to_owned());
        let text = if embedded { embedded::TABLE.to_owned() } else { flags.table.join("\n") };
        let devices = vec![DevicePlan { table: parse(&text, None)?, name: checked(name)?, read_only: flags.read_only }];
        let mut exports: Vec<_> = flags.export.into_iter().map(|uri| at_uri(0, uri)).collect();
        if exports.is_empty() && inherited {
            exports.push(ExportPlan { device: 0, name: devices[0].name.clone(), at: At::Inherited });
        }
        if exports.is_empty() && embedded {
            exports.push(at_uri(0, Uri::unix(embedded::SOCKET.as_ref(), "")));
        }
        let control = flags.control.or_else(|| embedded.then(|| PathBuf::from(embedded::CONTROL)));
        let plan = Self {
            devices,
            exports,
            control,
            engine: flags.engine.map_or(Engine::Auto, Engine::from),
            threads: flags.threads.map(|threads| usize::from(threads.get())),
            drain: flags.drain,
            pid_file: flags.pid_file,
            allow_remote: flags.allow_remote,
            sandbox: !flags.no_sandbox,
            allow_path: flags.allow_path,
            embedded,
        };
        plan.checked()
    }

    fn from_config(config: Config, flags: ServeFlags, inherited: bool) -> Result<Self, Failure> {
        let mut devices = Vec::new();
        let mut exports = Vec::new();
        for (index, device) in config.device.into_iter().enumerate() {
            let table = parse(&device.table, Some(&device.name))?;
            for text in device.export {
                let uri = text.parse().map_err(|error| Failure::Usage(format!("device {}: {error}", device.name)))?;
                exports.push(at_uri(index, uri));
            }
            if inherited {
                exports.push(ExportPlan { device: index, name: device.name.clone(), at: At::Inherited });
            }
            let read_only = device.read_only || flags.read_only;
            devices.push(DevicePlan { name: checked(device.name)?, table, read_only });
        }
        for uri in flags.export {
            let device = meant(&devices, &uri)?;
            exports.push(at_uri(device, uri));
        }
        let plan = Self {
            devices,
            exports,
            control: flags.control.or(config.control),
            engine: flags.engine.map(Engine::from).or(config.engine).unwrap_or(Engine::Auto),
            threads: flags.threads.or(config.threads).map(|threads| usize::from(threads.get())),
            drain: flags.drain || config.drain,
            pid_file: flags.pid_file.or(config.pid_file),
            allow_remote: flags.allow_remote || config.allow_remote,
            sandbox: !(flags.no_sandbox || config.no_sandbox),
            allow_path: flags.allow_path.into_iter().chain(config.allow_path).collect(),
            embedded: false,
        };
        plan.checked()
    }

    fn checked(self) -> Result<Self, Failure> {
        for (index, device) in self.devices.iter().enumerate() {
            if self.devices[..index].iter().any(|other| other.name == device.name) {
                return Err(Failure::Usage(format!("two devices are called {:?}: give each its own name", device.name)));
            }
            if !self.exports.iter().any(|export| export.device == index) {
                return Err(Failure::Usage(format!(
                    "{} is served nowhere: add --export 'nbd+unix:///?socket=PATH'",
                    device.name
                )));
            }
        }
        Ok(self)
    }
}

fn at_uri(device: usize, uri: Uri) -> ExportPlan {
    ExportPlan { device, name: uri.export, at: At::Endpoint(uri.endpoint) }
}

fn parse(text: &str, device: Option<&str>) -> Result<TableText, Failure> {
    TableText::parse(text)
        .map_err(|error| Failure::Usage(device.map_or_else(|| error.to_string(), |device| format!("device {device}: {error}"))))
}

fn checked(name: String) -> Result<String, Failure> {
    let plain = !name.is_empty() && !name.chars().any(|letter| letter.is_whitespace() || letter.is_control());
    if plain { Ok(name) } else { Err(Failure::Usage(format!("{name:?} cannot be a device's name: use one word"))) }
}

/// The device that an export of the command line means: the one of its name, or the only one.
fn meant(devices: &[DevicePlan], uri: &Uri) -> Result<usize, Failure> {
    if let Some(index) = devices.iter().position(|device| device.name == uri.export) {
        return Ok(index);
    }
    if devices.len() == 1 {
        return Ok(0);
    }
    let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
    Err(Failure::Usage(format!(
        "--export {uri} names none of the devices {}: put one of their names into the URI",
        names.join(", ")
    )))
}

/// Exports that one server serves, all of them at each of its places.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Where it listens.
    pub places: Vec<At>,
    /// Names and device indices.
    pub exports: Vec<(String, usize)>,
}

/// Puts exports that share a device or a place on one server: only so can it keep changes of one
/// sector by two clients apart.
///
/// # Errors
/// When two devices would have the same name at one place.
pub fn sites(exports: &[ExportPlan]) -> Result<Vec<Site>, Failure> {
    let mut sites: Vec<Site> = Vec::new();
    for export in exports {
        let shares =
            |site: &Site| site.places.contains(&export.at) || site.exports.iter().any(|(_, device)| *device == export.device);
        let (touched, others): (Vec<_>, Vec<_>) = sites.into_iter().partition(shares);
        let mut whole = Site::default();
        for site in touched {
            whole.places.extend(site.places);
            whole.exports.extend(site.exports);
        }
        if !whole.places.contains(&export.at) {
            whole.places.push(export.at.clone());
        }
        let entry = (export.name.clone(), export.device);
        if !whole.exports.contains(&entry) {
            whole.exports.push(entry);
        }
        sites = others;
        sites.push(whole);
    }
    for site in &sites {
        for (index, (name, device)) in site.exports.iter().enumerate() {
            if site.exports[..index].iter().any(|(other_name, other)| other_name == name && other != device) {
                return Err(Failure::Usage(format!("two devices are exported as {name:?} at one place: give each its own name")));
            }
        }
    }
    Ok(sites)
}

#[cfg(test)]
mod tests;
