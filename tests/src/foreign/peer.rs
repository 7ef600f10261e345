//! A process of another project, most often a server, that ends with its test.

use crate::run;
use crate::server::binary;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(1);

/// A process of which the test knows the process id.
#[derive(Debug)]
pub struct Peer(Child);

impl Peer {
    /// Starts it. What it says on standard error is not kept.
    pub fn spawn(words: &[&str]) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).args(words).env("LC_ALL", "C");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("setpriv is installed"))
    }

    /// Starts a server and waits until somebody answers at its socket. The socket of one that was killed is taken away first.
    pub fn serve(words: &[&str], socket: &str) -> Self {
        let _built = binary(); // may take longer than everything else
        let _ = std::fs::remove_file(socket);
        let mut peer = Self::spawn(words);
        // The file is there before anybody listens.
        run::wait_for("the server", LIMIT, || {
            assert!(peer.ended().is_none(), "{} ended at once: {words:?}", words[0]);
            UnixStream::connect(socket).ok()
        });
        peer
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("a child can be waited for")
    }

    /// Waits for its end.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        run::wait_for("a process to end", limit, || self.ended())
    }

    /// Ends it as a crash would.
    pub fn kill(mut self) {
        self.0.kill().expect("it is a child of this process");
        self.0.wait().expect("it was killed");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended by itself
        let _ = self.0.wait();
    }
}
