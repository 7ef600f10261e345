//! A real kernel as an ordinary process: scripts that run in user-mode-linux, and its crash.
//!
//! ```text
//!  Guest::new(folder) ─┬─ run(script) ──▶ output, when the script ended with 0
//!                      └─ start(script) ▶ Running ── wait_for(line) … crash() ──▶ output so far
//! ```
//!
//! 1. The guest's writes to files of the shared folder reach the host at once, flushed or not: a crash of the guest is
//!    that of a machine whose disks lose nothing. What a power cut can lose is for `writecache::powercut`.
//! 2. The guest powers itself off at its limit, even when this process is gone.

use crate::run::{self, Ended};
use crate::{Scratch, require};
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

const MODULES: [&str; 6] = ["dm-mod", "dm-bufio", "dm-writecache", "dm-log-writes", "dm-snapshot", "loop:max_loop=64"];
const LIMIT: Duration = Duration::from_mins(2);

/// What a guest is started with.
#[derive(Debug)]
pub struct Guest {
    folder: PathBuf,
    modules: Vec<&'static str>,
}

impl Guest {
    /// A guest that sees `folder` at `/mnt`, can write there, and has the device mapper, `writecache`, snapshots and loop devices.
    pub fn new(folder: &Path) -> Self {
        require(&["linux.uml", "dmsetup", "cc"]);
        Self { folder: folder.to_path_buf(), modules: MODULES.to_vec() }
    }

    /// The same, with more modules, in load order.
    #[must_use]
    pub fn with(mut self, modules: &[&'static str]) -> Self {
        self.modules.extend(modules);
        self
    }

    /// Runs a script to its end, which must be a success, and returns what it printed.
    pub fn run(&self, script: &str) -> String {
        let mut running = self.start(script);
        let Ended { code, stdout, stderr } = running.end();
        assert_eq!(code, 0, "the guest failed\n{stdout}\n{stderr}");
        stdout
    }

    /// Starts a script in the background.
    pub fn start(&self, script: &str) -> Running {
        let file = |name: &str| self.folder.join(name);
        std::fs::write(file("script.sh"), format!("set -e\n{script}")).expect("the shared folder is writable");
        let log = File::create(file("guest.log")).expect("the shared folder is writable");
        let errors = File::create(file("guest.err")).expect("the shared folder is writable");
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/uml.sh"));
        command.arg("-w").arg(&self.folder).args(["-t", &(5 * LIMIT).as_secs().to_string()]);
        command.arg("-p").arg(file("guest.group"));
        for module in &self.modules {
            command.args(["-k", module]);
        }
        command.arg(file("script.sh")).stdout(log).stderr(errors);
        let child = command.spawn().expect("tests/lab/uml.sh can be started");
        Running { child, log: file("guest.log"), errors: file("guest.err"), group: file("guest.group") }
    }
}

/// A guest at work.
#[derive(Debug)]
pub struct Running {
    child: Child,
    log: PathBuf,
    errors: PathBuf,
    group: PathBuf,
}

impl Running {
    /// What the guest has printed so far.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the output satisfies `done`.
    pub fn wait_until(&mut self, what: &str, done: impl Fn(&str) -> bool) {
        run::wait_for(what, LIMIT, || {
            let ended = self.child.try_wait().expect("a child can be waited for");
            let output = self.output();
            assert!(ended.is_none(), "the guest ended before {what}\n{output}\n{}", self.said_wrong());
            done(&output).then_some(())
        });
    }

    /// Kills the guest like a crash of the machine, and returns what it had printed.
    pub fn crash(mut self) -> String {
        self.kill();
        self.output()
    }

    fn end(&mut self) -> Ended {
        let status = run::wait_for("the guest to end", LIMIT, || self.child.try_wait().expect("a child can be waited for"));
        Ended { code: status.code().unwrap_or(-1), stdout: self.output(), stderr: self.said_wrong() }
    }

    fn said_wrong(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_default()
    }

    /// Kills the guest's processes and waits until the host's kernel is done with all of them.
    fn kill(&mut self) {
        run::wait_for("the guest's processes to end", LIMIT, || {
            let group = std::fs::read_to_string(&self.group).unwrap_or_default();
            let group = group.trim().parse().ok().and_then(Pid::from_raw);
            if let Some(group) = group {
                let _ = kill_process_group(group, Signal::KILL); // it may be gone already
                let _ = kill_process(group, Signal::KILL); // or so young that it has no group of its own yet
            }
            // Without its guest the script ends by itself.
            let over = self.child.try_wait().expect("a child can be waited for").is_some();
            (over && group.is_none_or(|group| test_kill_process_group(group).is_err())).then_some(())
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a script in Linux 6.12 under QEMU, with the images as `/dev/vda`, `/dev/vdb` and so on, and returns what it printed.
///
/// The guest has the device mapper with `writecache`, and the given program of the host.
pub fn run_in_newer_kernel(scratch: &Scratch, program: &str, images: &[String], script: &str) -> String {
    require(&["qemu-system-x86_64", "/bin/busybox", "cpio", "modprobe", "xz", "dmsetup"]);
    let script = scratch.write("script.sh", format!("set -e\n{script}").as_bytes());
    let lab = concat!(env!("CARGO_MANIFEST_DIR"), "/lab/vm.sh");
    let mut words = vec![lab, "-k", "dm-writecache", "-b", "dmsetup", "-b", program];
    for image in images {
        words.extend(["-d", image]);
    }
    words.push(&script);
    run::ok(240, &words)
}
