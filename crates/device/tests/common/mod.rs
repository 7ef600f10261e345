//! What the tests of devices share. Each of them uses a part of it.
#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

pub mod load;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_block::{Bio, HeapMemory, Segments, Status, Target, call};
use forebay_reactor::{Reactor, Threads, Uring};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// A reactor to put devices on.
pub struct Bed {
    pub reactor: Reactor,
}

impl Bed {
    pub fn new() -> Self {
        Self { reactor: Reactor::new(Box::new(Uring::new().unwrap())) }
    }

    pub fn on_threads() -> Self {
        Self { reactor: Reactor::new(Box::new(Threads::new().unwrap())) }
    }

    /// What becomes of a bio.
    pub fn status(&self, target: &dyn Target, bio: Bio) -> Status {
        self.reactor.run(call(target, bio)).unwrap().status()
    }
}

/// A file of its own for a test, in the build's folder of temporary files.
pub struct TempFile(pub PathBuf);

impl TempFile {
    pub fn new(name: &str, bytes: u64) -> Self {
        static FILES: AtomicU32 = AtomicU32::new(0);
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}-{number}", std::process::id()));
        std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

/// Plain payload of zeroes.
pub fn memory(bytes: u32) -> Rc<Segments> {
    Segments::whole(Box::new(HeapMemory::new(bytes as usize, 4096)), bytes).unwrap()
}

/// Plain payload filled with a pattern that depends on `seed`.
pub fn filled(bytes: u32, seed: u8) -> Rc<Segments> {
    let mut segments = memory(bytes);
    Rc::get_mut(&mut segments).unwrap().bytes_mut().copy_from_slice(&pattern(bytes as usize, seed));
    segments
}

pub fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| u8::try_from((at / 512 * 7 + at % 251) & 255).unwrap() ^ seed).collect()
}

pub fn bytes_of(segments: Rc<Segments>) -> Vec<u8> {
    Rc::into_inner(segments).expect("no bio holds the memory any more").bytes_mut().to_vec()
}

/// Held while a process is started, and by tests that find a file unlocked at once: until the new process runs its program
/// it has all files of this one.
pub static STARTING: Mutex<()> = Mutex::new(());

/// Runs `body` on a folder where a file system of this type is mounted: in a child process with a
/// mount namespace of its own, which runs only the test called `name`.
pub fn inside_mount(kind: &str, options: &str, name: &str, body: impl FnOnce(&Path)) {
    const FOLDER: &str = "FOREBAY_TEST_MOUNT";
    if let Some(folder) = std::env::var_os(FOLDER) {
        return body(Path::new(&folder));
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("mount-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let script = format!("mount -t {kind} -o {options} none \"${FOLDER}\" && exec \"$0\" --exact {name} --nocapture");
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--mount", "sh", "-c", &script]).arg(std::env::current_exe().unwrap());
    let starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut child = unshare.env(FOLDER, &folder).spawn().expect("unshare(1) of util-linux is installed");
    drop(starting);
    let status = child.wait().unwrap();
    std::fs::remove_dir(&folder).unwrap();
    assert!(status.success(), "the test failed inside the mount, or the mount was refused");
}

/// The warnings that `body` logs on this thread.
pub fn warnings_of(body: impl FnOnce()) -> Vec<String> {
    let lines = Arc::<Mutex<Vec<String>>>::default();
    tracing::subscriber::with_default(Listener(Arc::clone(&lines)), body);
    let lines = lines.lock().unwrap();
    lines.clone()
}

struct Listener(Arc<Mutex<Vec<String>>>);

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
