//! Lets go of what a server does not need: whoever gets hold of it gets hold of little.
//!
//! ```text
//!   plan ─▶ devices        read, write           side files, images, process id   all of their folders
//!           dictionaries   read                  sockets                          made and removed in theirs
//!           /proc, /sys    read                  TCP ports                        bound, connected to
//! ```
//!
//! 1. It is entered before any thread is made and any device opened, so that all that follows is inside.
//! 2. Nothing that the plan names is refused: what cannot be found now is told by whoever opens it.
//! 3. Where the kernel lacks a part of it, the rest holds. `no_new_privs` is everywhere.
//!
//! A compressed RAM disk can be saved beside the control socket, and wherever `--allow-path` says.
//!
//! Source: the kernel's `Documentation/userspace-api/landlock.rst`.

use std::path::{Path, PathBuf};

use forebay::DeviceName;
use forebay_export::uri::Endpoint;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, NetPort, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use super::plan::{At, Plan};
use crate::failure::Failure;

/// What is asked of the kernel: Linux 6.12. Older ones give what they have.
const WANTED: ABI = ABI::V6;
/// What the system tells about itself, and what a host name is looked up with.
const TOLD: [&str; 2] = ["/proc", "/sys"];
const LOOKUP: [&str; 11] = [
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/etc/services",
    "/lib",
    "/lib64",
    "/run/systemd/resolve",
    "/usr/lib",
];
/// Port of name servers.
const DNS_PORT: u16 = 53;

/// What a server may do.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    /// Files and folders to read.
    read: Vec<PathBuf>,
    /// Files and devices to read and write.
    write: Vec<PathBuf>,
    /// Folders in which files are made, replaced and removed.
    make: Vec<PathBuf>,
    /// Folders in which sockets are made and removed.
    sockets: Vec<PathBuf>,
    /// Ports to listen on.
    bind: Vec<u16>,
    /// Ports to connect to.
    connect: Vec<u16>,
}

impl Needs {
    fn of(plan: &Plan) -> Self {
        let mut needs = Self { read: TOLD.map(PathBuf::from).to_vec(), ..Self::default() };
        for device in &plan.devices {
            let names = device.table.names();
            needs.make.extend(plan.control.as_deref().filter(|_| names.saved).map(folder));
            names.devices.into_iter().for_each(|device| needs.device(device));
            needs.read.extend(names.read.into_iter().map(Path::to_owned));
            needs.make.extend(names.made.into_iter().flat_map(folders));
        }
        for export in &plan.exports {
            match &export.at {
                At::Endpoint(Endpoint::Unix(path)) => needs.sockets.push(folder(path)),
                At::Endpoint(Endpoint::Tcp { host, port }) => {
                    needs.bind.push(*port);
                    needs.look_up(host);
                }
                At::Inherited => {}
            }
        }
        needs.sockets.extend(plan.control.as_deref().map(folder));
        needs.make.extend(plan.pid_file.as_deref().map(folder));
        needs.make.extend(plan.allow_path.iter().cloned());
        needs
    }

    fn device(&mut self, device: &DeviceName) {
        match device {
            DeviceName::File(path) => self.write.push(path.clone()),
            DeviceName::Nbd(uri) => {
                if let Endpoint::Tcp { host, port } = &uri.endpoint {
                    self.connect.push(*port);
                    self.look_up(host);
                }
            }
            DeviceName::Ram { .. } | DeviceName::Null { .. } => {}
        }
    }

    fn look_up(&mut self, host: &str) {
        if host.parse::<std::net::IpAddr>().is_err() {
            self.read.extend(LOOKUP.map(PathBuf::from));
            self.connect.push(DNS_PORT);
        }
    }

    fn rules(&self, mut rules: RulesetCreated) -> Result<RulesetCreated, RulesetError> {
        let write = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
        let remove = AccessFs::ReadDir | AccessFs::RemoveFile;
        let make = write | remove | AccessFs::MakeReg | AccessFs::Refer;
        let whole = [
            (&self.read, AccessFs::ReadFile | AccessFs::ReadDir),
            (&self.write, write),
            (&self.make, make),
            (&self.sockets, remove | AccessFs::MakeSock),
        ];
        for (paths, access) in whole {
            for path in paths {
                rules = allow(rules, path, access)?;
            }
        }
        for port in &self.bind {
            rules = rules.add_rule(NetPort::new(*port, AccessNet::BindTcp))?;
        }
        for port in &self.connect {
            rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
        }
        Ok(rules)
    }
}

/// Allows `access` to what `path` leads to; nothing where there is nothing.
fn allow(rules: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> Result<RulesetCreated, RulesetError> {
    let Ok(found) = PathFd::new(path) else { return Ok(rules) };
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(WANTED) };
    rules.add_rule(PathBeneath::new(found, access))
}

/// The folder that `path` lies in.
fn folder(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new(".")).to_owned()
}

/// The folders that `path`, and what it may be a link to, lie in.
fn folders(path: &Path) -> impl Iterator<Item = PathBuf> {
    let behind = std::fs::canonicalize(path).ok().map(|place| folder(&place));
    [folder(path)].into_iter().chain(behind)
}

/// Lets go of everything that `plan` has no need for.
///
/// # Errors
/// When the kernel has what is asked for, and refuses it.
pub fn enter(plan: &Plan) -> Result<(), Failure> {
    let failed = |error: RulesetError| {
        Failure::Failed(format!("the server could not be restricted to its files: {error}; --no-sandbox does without"))
    };
    let status = restrict(&Needs::of(plan)).map_err(failed)?;
    match status {
        RulesetStatus::FullyEnforced => tracing::info!("the server may use its files, devices and ports, and nothing else"),
        RulesetStatus::PartiallyEnforced => {
            tracing::info!("the server may use its files and devices; this kernel cannot restrict everything else");
        }
        RulesetStatus::NotEnforced => tracing::info!("this kernel has no Landlock: the server may use whatever its user may"),
    }
    Ok(())
}

fn restrict(needs: &Needs) -> Result<RulesetStatus, RulesetError> {
    let rules = Ruleset::default()
        .handle_access(AccessFs::from_all(WANTED))?
        .handle_access(AccessNet::from_all(WANTED))?
        .scope(Scope::Signal)?
        .create()?;
    Ok(needs.rules(rules)?.restrict_self()?.ruleset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::ServeFlags;

    #[test]
    fn a_server_needs_what_its_plan_names_and_no_more() {
        let lines = [
            "0 8 writecache s slow.img /dev/fast 4096 2 side state/a.side",
            "8 8 zram dict=words image=pages.img backing_dev=nbd://[::1]:7/spill",
            "16 8 linear nbd://host:8/disk 0",
        ];
        let exports = ["nbd://127.0.0.1:10809/disk", "nbd+unix:///disk?socket=nbd.sock"];
        let flags = ServeFlags {
            table: lines.map(str::to_owned).to_vec(),
            export: exports.map(|uri| uri.parse().unwrap()).to_vec(),
            control: Some("run/control.sock".into()),
            pid_file: Some("/run/forebay.pid".into()),
            allow_path: vec!["/srv/images".into()],
            ..ServeFlags::default()
        };
        let plan = Plan::new(flags, false).unwrap();
        let needs = Needs::of(&plan);
        let paths = |paths: &[PathBuf]| paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(paths(&needs.read), format!("/proc /sys {} words", LOOKUP.join(" ")));
        assert_eq!(paths(&needs.write), "slow.img /dev/fast");
        assert_eq!(paths(&needs.make), "run state . /run /srv/images");
        assert_eq!(paths(&needs.sockets), ". run");
        assert_eq!((needs.bind, needs.connect), (vec![10809], vec![7, 8, DNS_PORT]));
    }
}
