//! A folder of its own for each test, removed afterwards unless the test failed.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A folder under `$FOREBAY_TEST_FOLDER` or the system's temporary folder. Its path is short, so that sockets fit in it.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Scratch {
    /// Makes an empty folder.
    pub fn new() -> Self {
        Self::under(&std::env::var_os("FOREBAY_TEST_FOLDER").map_or_else(std::env::temp_dir, PathBuf::from))
    }

    /// Makes an empty folder in memory, where flushes cost nothing.
    pub fn in_memory() -> Self {
        Self::under(Path::new("/dev/shm"))
    }

    fn under(base: &Path) -> Self {
        fs::create_dir_all(base).unwrap_or_else(|error| panic!("cannot make {}: {error}", base.display()));
        loop {
            let name = format!("forebay-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = base.join(name);
            match fs::create_dir(&path) {
                Ok(()) => return Self { path },
                // Left by a failed test of a process that had the same number.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("cannot make {}: {error}", path.display()),
            }
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it, as text for command lines.
    pub fn file(&self, name: &str) -> String {
        self.path.join(name).to_str().expect("scratch paths are plain text").to_owned()
    }

    /// Makes a sparse file of `bytes` zeros and returns its path.
    pub fn sparse(&self, name: &str, bytes: u64) -> String {
        let path = self.file(name);
        File::create(&path).and_then(|file| file.set_len(bytes)).unwrap_or_else(|error| panic!("cannot make {path}: {error}"));
        path
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.file(name);
        fs::write(&path, bytes).unwrap_or_else(|error| panic!("cannot write {path}: {error}"));
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("left for inspection: {}", self.path.display());
        } else {
            let _ = fs::remove_dir_all(&self.path); // a mount that is still busy is reported by its own test
        }
    }
}
