//! Commands with a limit on their time, whose failure shows what they said.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

/// The end of a command: exit status and both outputs as text.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Exit status; 128 + N when signal N ended it, 124 when it ran out of time.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl From<Output> for Ended {
    fn from(out: Output) -> Self {
        use std::os::unix::process::ExitStatusExt;
        let code = out.status.code().or_else(|| out.status.signal().map(|signal| 128 + signal));
        Self {
            code: code.unwrap_or(-1),
            stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
        }
    }
}

/// Limits are for a machine that has time. One that is busy, or stands still for a while, gets so many times as much.
const PATIENCE: u32 = 5;

/// A command that is killed after `PATIENCE` times `limit_s` seconds, and when the thread that started it ends.
pub fn limited<S: AsRef<OsStr>>(limit_s: u32, words: &[S]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "timeout", "--kill-after=5"]).arg((PATIENCE * limit_s).to_string()).args(words);
    command.env("LC_ALL", "C");
    command
}

/// Runs a command to its end, whatever that is.
pub fn outcome<S: AsRef<OsStr>>(limit_s: u32, words: &[S]) -> Ended {
    limited(limit_s, words).output().expect("setpriv and timeout are installed").into()
}

/// Runs a command that must succeed and returns its standard output.
pub fn ok<S: AsRef<OsStr>>(limit_s: u32, words: &[S]) -> String {
    let ended = outcome(limit_s, words);
    let shown: Vec<String> = words.iter().map(|word| word.as_ref().to_string_lossy().into_owned()).collect();
    assert_eq!(ended.code, 0, "{}\nstdout: {}\nstderr: {}", shown.join(" "), ended.stdout, ended.stderr);
    ended.stdout
}

/// Runs a `sh` script that must succeed and returns its standard output.
pub fn shell(limit_s: u32, script: &str) -> String {
    ok(limit_s, &["sh", "-ec", script])
}

/// The SHA-256 of a file, in hexadecimal.
pub fn sha256(path: &Path) -> String {
    ok(120, &[OsStr::new("sha256sum"), path.as_os_str()]).chars().take(64).collect()
}

/// Real time, for limits of real processes.
pub fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "real processes run on real time")]
    Instant::now()
}

/// Sleeps for real.
pub fn pause(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "real processes run on real time")]
    thread::sleep(time);
}

/// Asks again and again until `probe` answers; panics with `what` after `PATIENCE` times `limit`.
pub fn wait_for<T>(what: &str, limit: Duration, probe: impl FnMut() -> Option<T>) -> T {
    answer(limit, probe).unwrap_or_else(|| panic!("waited {} s in vain for {what}", (PATIENCE * limit).as_secs()))
}

/// Whether `probe` says so within `PATIENCE` times `limit`.
pub fn happens_within(limit: Duration, mut probe: impl FnMut() -> bool) -> bool {
    answer(limit, || probe().then_some(())).is_some()
}

fn answer<T>(limit: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = now() + PATIENCE * limit;
    loop {
        let late = now() >= deadline;
        let answer = probe();
        if late || answer.is_some() {
            return answer;
        }
        pause(Duration::from_millis(10));
    }
}
