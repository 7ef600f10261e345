//! The built `forebay` as a process of its own: started, found by its URI, killed by its process id.
//!
//! 1. The binary is `$FOREBAY_BIN` when that is set; otherwise `cargo build -p forebay-cli` makes it, once.
//! 2. The server dies with the thread that started it, whatever happens to the test.

use crate::run::{self, Ended};
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// Longer than a server waits for what a killed one left behind.
const START_LIMIT: Duration = Duration::from_mins(1);
const STOP_LIMIT: Duration = Duration::from_mins(1);

/// The path of the built binary.
pub fn binary() -> &'static str {
    static BINARY: OnceLock<String> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Ok(path) = std::env::var("FOREBAY_BIN") {
            return path;
        }
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let out = Command::new(cargo).args(["build", "--release", "-p", "forebay-cli"]).output().expect("cargo is installed");
        assert!(out.status.success(), "cannot build the binary: {}", String::from_utf8_lossy(&out.stderr));
        // This test runs from TARGET/release/deps/NAME; the binary stands in TARGET/release.
        let me = std::env::current_exe().expect("a running program has a path");
        let folder = me.parent().and_then(|deps| deps.parent()).expect("tests run from the target folder");
        folder.join("forebay").to_str().expect("a plain path").to_owned()
    })
}

/// Runs the binary to its end.
pub fn forebay(args: &[&str]) -> Ended {
    let mut words = vec![binary()];
    words.extend(args);
    run::outcome(60, &words)
}

/// Flushes that have come in through the first export of a device, by the device's place in the server's status.
pub fn flushes(control: &str, device: usize) -> u64 {
    let ended = forebay(&["status", "--json", "--control", control]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).expect("status is JSON");
    let export = &report["devices"][device]["exports"][0];
    export["flushes"].as_u64().unwrap_or_else(|| panic!("no flushes of device {device}: {report}"))
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    uris: Vec<String>,
}

impl Server {
    /// Starts `forebay serve` with these arguments and waits until it has printed `exports` NBD URIs.
    /// Its output goes to files whose names start with `log`.
    pub fn start(log: &str, exports: usize, args: &[&str]) -> Self {
        Self::start_in(Path::new("."), log, exports, args)
    }

    /// The same, from another current folder.
    pub fn start_in(folder: &Path, log: &str, exports: usize, args: &[&str]) -> Self {
        let mut server = Self::spawn_in(folder, log, args);
        let ended = server.first_of_uris_or_end(exports);
        assert!(ended.is_none(), "the server ended: {args:?}\n{}{}", server.stdout(), server.stderr());
        server
    }

    /// Waits until the server has printed `exports` NBD URIs or has ended, and returns how it ended in that case.
    pub fn first_of_uris_or_end(&mut self, exports: usize) -> Option<Ended> {
        run::wait_for("the server's URIs", START_LIMIT, || {
            let ended = self.child.try_wait().expect("a child can be waited for");
            self.uris = uris(&self.stdout());
            (self.uris.len() >= exports || ended.is_some()).then_some(())
        });
        (self.uris.len() < exports).then(|| self.wait())
    }

    /// Starts `forebay serve` without waiting for anything.
    pub fn spawn(log: &str, args: &[&str]) -> Self {
        Self::spawn_in(Path::new("."), log, args)
    }

    fn spawn_in(folder: &Path, log: &str, args: &[&str]) -> Self {
        let (stdout, stderr) = (PathBuf::from(format!("{log}.out")), PathBuf::from(format!("{log}.err")));
        let file = |path: &PathBuf| File::create(path).unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
        // No `timeout` in between: the process id must be the server's own.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", binary(), "serve"]).args(args).current_dir(folder);
        command.stdin(Stdio::null()).stdout(file(&stdout)).stderr(file(&stderr));
        let child = command.spawn().expect("setpriv is installed");
        Self { child, stdout, stderr, uris: Vec::new() }
    }

    /// The first URI that it printed.
    pub fn uri(&self) -> &str {
        self.uris.first().expect("the server was started with an export")
    }

    /// All URIs that it printed, in order.
    pub fn uris(&self) -> &[String] {
        &self.uris
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Bytes of memory that it has at hand.
    pub fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).expect("the server lives");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a process has memory");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
    }

    /// Descriptors that it has open.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.id())).expect("the server lives").count()
    }

    /// Everything on standard output so far.
    pub fn stdout(&self) -> String {
        fs::read_to_string(&self.stdout).unwrap_or_default()
    }

    /// Everything on standard error so far.
    pub fn stderr(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Kills it with SIGKILL and waits until the kernel is done with it.
    pub fn kill(mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }

    /// Asks it to leave with SIGTERM; it must do so with status 0.
    pub fn stop(mut self) {
        self.terminate();
        let ended = self.wait();
        assert_eq!(ended.code, 0, "the server did not leave cleanly\n{}{}", ended.stdout, ended.stderr);
    }

    /// Sends SIGTERM and returns at once.
    pub fn terminate(&mut self) {
        let id = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw).expect("a process id");
        rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("a child can be signalled");
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_some()
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> Ended {
        let status =
            run::wait_for("the server to leave", STOP_LIMIT, || self.child.try_wait().expect("a child can be waited for"));
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1);
        Ended { code, stdout: self.stdout(), stderr: self.stderr() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

/// The NBD URIs that stand on a complete line of their own: others are those of devices.
fn uris(text: &str) -> Vec<String> {
    let complete = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
    let mut found: Vec<String> = Vec::new();
    for line in complete.lines().filter(|line| line.starts_with("nbd://") || line.starts_with("nbd+unix://")) {
        if !found.iter().any(|known| known == line) {
            found.push(line.to_owned());
        }
    }
    found
}
