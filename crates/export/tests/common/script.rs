//! Servers that follow a script: they negotiate as our own does, and then say what a test wants.
#![allow(clippy::needless_pass_by_value, reason = "closures are written in place")]

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_block::{Bio, HeapMemory, Sector, Segments, Status, call};
use forebay_device::{NbdDevice, NbdOptions};
use forebay_nbd::server::{BlockBytes, Export, Handshake, ReplyTo, RequestHeader, Session, Step, parse_request};
use forebay_nbd::uri::Endpoint;
use forebay_nbd::{TransmissionFlags, WireError};
use forebay_reactor::{BufferPool, Reactor};

use super::Engine;
pub use super::LONG;
use super::client::{READ, WRITE};

pub const BYTES: u64 = 1 << 20;

/// A folder with a socket, and a server on a thread.
pub struct Script {
    folder: PathBuf,
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Script {
    pub fn new(script: impl FnOnce(UnixListener, PathBuf) + Send + 'static) -> Self {
        let folder = super::directory();
        let path = folder.join("nbd.sock");
        let (listener, place) = (UnixListener::bind(&path).unwrap(), path.clone());
        Self { folder, path, thread: Some(std::thread::spawn(move || script(listener, place))) }
    }

    pub fn uri(&self) -> String {
        format!("nbd+unix:///disk?socket={}", self.path.display())
    }

    /// Waits for the end of the script, which must be a good one.
    pub fn end(mut self) {
        self.thread.take().expect("a script ends once").join().expect("the script saw what it expects");
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A client that entered.
pub struct Peer {
    pub stream: UnixStream,
    session: Session,
    pub input: Vec<u8>,
}

impl Peer {
    pub fn accept(listener: &UnixListener) -> Self {
        Self::accept_with(listener, TransmissionFlags::SEND_FLUSH | TransmissionFlags::SEND_FUA)
    }

    pub fn accept_with(listener: &UnixListener, flags: TransmissionFlags) -> Self {
        Self::accept_sized(listener, BYTES, flags)
    }

    /// An export of 4 GiB.
    pub fn accept_large(listener: &UnixListener, flags: TransmissionFlags) -> Self {
        Self::accept_sized(listener, 4 << 30, flags)
    }

    fn accept_sized(listener: &UnixListener, bytes: u64, flags: TransmissionFlags) -> Self {
        Self::enter(listener, bytes, flags).expect("the client stays in the handshake")
    }

    /// The next client, unless it leaves in the handshake.
    pub fn accept_if_it_stays(listener: &UnixListener) -> io::Result<Self> {
        Self::enter(listener, BYTES, TransmissionFlags::SEND_FLUSH | TransmissionFlags::SEND_FUA)
    }

    fn enter(listener: &UnixListener, bytes: u64, flags: TransmissionFlags) -> io::Result<Self> {
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(LONG)).unwrap();
        let exports = [Export::new("disk", bytes, flags, BlockBytes::new(512, 4096).unwrap()).unwrap()];
        let (mut out, mut input) = (Vec::new(), Vec::new());
        let mut handshake = Handshake::start(&mut out);
        loop {
            stream.write_all(&out)?;
            out.clear();
            let progress = handshake.advance(&exports, &input, &mut out);
            input.drain(..progress.consumed);
            match progress.step {
                Step::Continue => {}
                Step::NeedMore { .. } => {
                    let mut piece = [0; 4096];
                    let received = stream.read(&mut piece)?;
                    if received == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    input.extend(&piece[..received]);
                }
                Step::Transmit(session) => {
                    stream.write_all(&out)?;
                    return Ok(Self { stream, session, input });
                }
                Step::Close(why) => panic!("{why}"),
            }
        }
    }

    /// The next request with its payload; `None` when the client left or said goodbye.
    pub fn request(&mut self) -> Option<(RequestHeader, Vec<u8>)> {
        loop {
            if let Some((header, used)) = parse_request(&self.input, self.session.framing()).unwrap() {
                if header.kind == 2 {
                    return None;
                }
                let payload = if header.kind == WRITE { usize::try_from(header.length).unwrap() } else { 0 };
                if self.input.len() >= used + payload {
                    self.input.drain(..used);
                    return Some((header, self.input.drain(..payload).collect()));
                }
            }
            let mut piece = [0; 4096];
            let received = self.stream.read(&mut piece).unwrap_or(0);
            if received == 0 {
                return None;
            }
            self.input.extend(&piece[..received]);
        }
    }

    /// The next request, of whose payload nothing is taken.
    pub fn header(&mut self) -> RequestHeader {
        loop {
            if let Some((header, used)) = parse_request(&self.input, self.session.framing()).unwrap() {
                self.input.drain(..used);
                return header;
            }
            let mut byte = [0];
            self.stream.read_exact(&mut byte).unwrap();
            self.input.push(byte[0]);
        }
    }

    pub fn done(&mut self, header: &RequestHeader) {
        self.try_done(header).unwrap();
    }

    /// The same, for a client that may have left.
    pub fn try_done(&mut self, header: &RequestHeader) -> io::Result<()> {
        let mut out = Vec::new();
        let to = ReplyTo { cookie: header.cookie, offset: header.offset };
        if header.kind == READ {
            self.session.framing().put_read(&mut out, to, u32::try_from(header.length).unwrap());
            out.extend(vec![b'r'; usize::try_from(header.length).unwrap()]);
        } else {
            self.session.framing().put_done(&mut out, to);
        }
        self.stream.write_all(&out)
    }

    pub fn fail(&mut self, header: &RequestHeader, error: WireError) {
        let mut out = Vec::new();
        let to = ReplyTo { cookie: header.cookie, offset: header.offset };
        self.session.framing().put_error(&mut out, to, error, "as the script says");
        self.stream.write_all(&out).unwrap();
    }

    /// Answers everything until the client leaves; what was asked.
    pub fn serve(mut self) -> Vec<(u16, u64)> {
        let mut asked = Vec::new();
        while let Some((header, _)) = self.request() {
            asked.push((header.kind, header.offset));
            self.done(&header);
        }
        asked
    }
}

/// A request to which the server says anything, and then goes away.
pub fn answer_with_anything(peer: &mut Peer, random: &mut fastrand::Rng) -> bool {
    let Some((header, _)) = peer.request() else { return false };
    let mut good = Vec::new();
    let to = ReplyTo { cookie: header.cookie, offset: header.offset };
    let framing = peer.session.framing();
    if header.kind == READ {
        framing.put_read(&mut good, to, u32::try_from(header.length).unwrap());
        good.extend(vec![b'r'; usize::try_from(header.length).unwrap()]);
    } else {
        framing.put_done(&mut good, to);
    }
    let mut bytes = good.clone();
    let kind = random.u32(0..8);
    match kind {
        // Most are good.
        0..4 => {}
        4 => bytes.truncate(random.usize(..good.len())),
        5 => bytes.extend(good),
        6 => {
            let heads = bytes.len().min(40);
            bytes[random.usize(..heads)] ^= 1 << random.u32(0..8);
        }
        _ => bytes.iter_mut().for_each(|byte| *byte = random.u8(..)),
    }
    let _ = peer.stream.write_all(&bytes);
    kind < 4
}

/// Waits for a file.
pub fn until_exists(path: &Path) {
    let until = Instant::now() + LONG;
    while !path.exists() {
        assert!(Instant::now() < until, "{} is there in time", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Where the server of `device` listens.
pub fn socket(device: &NbdDevice) -> PathBuf {
    let Endpoint::Unix(path) = &device.uri().endpoint else { panic!("it is a unix socket") };
    path.clone()
}

pub fn options() -> NbdOptions {
    NbdOptions { dial: LONG, reply: LONG, away: LONG, ..NbdOptions::default() }
}

/// Runs `work` with a device, on every backend, each with a script of its own.
pub fn each(
    options: &NbdOptions,
    script: impl Fn(UnixListener, PathBuf) + Send + Clone + 'static,
    work: impl AsyncFn(&Reactor, Rc<NbdDevice>),
) {
    for engine in [Engine::Uring, Engine::Threads] {
        on(engine, options, script.clone(), &work);
    }
}

/// The same on all backends at a time, for tests that mostly wait.
pub fn each_at_once(
    options: &NbdOptions,
    script: impl Fn(UnixListener, PathBuf) + Send + Clone + 'static,
    work: impl AsyncFn(&Reactor, Rc<NbdDevice>) + Sync,
) {
    std::thread::scope(|scope| {
        for engine in [Engine::Uring, Engine::Threads] {
            let (script, work) = (script.clone(), &work);
            scope.spawn(move || on(engine, options, script, work));
        }
    });
}

/// Runs `work` with a device on one backend.
fn on(
    engine: Engine,
    options: &NbdOptions,
    script: impl FnOnce(UnixListener, PathBuf) + Send + 'static,
    work: &impl AsyncFn(&Reactor, Rc<NbdDevice>),
) {
    let script = Script::new(script);
    let reactor = Reactor::new(engine.backend());
    let pool = BufferPool::new(&reactor);
    reactor
        .run(async {
            let uri = script.uri().parse().unwrap();
            let device = NbdDevice::connect(&reactor, &pool, &uri, options.clone()).await.unwrap();
            work(&reactor, device).await;
            // The goodbye needs no turn; the tasks need a few.
            reactor.sleep(Duration::from_millis(1)).await;
        })
        .unwrap();
    drop(reactor);
    script.end();
}

pub fn write(at: u64, bytes: usize) -> Bio {
    let segments = Segments::whole(Box::new(HeapMemory::new(bytes, 512)), u32::try_from(bytes).unwrap()).unwrap();
    Bio::write(Sector(at / 512), segments, 0, u32::try_from(bytes).unwrap())
}

pub fn read(at: u64, bytes: usize) -> Bio {
    let segments = Segments::whole(Box::new(HeapMemory::new(bytes, 512)), u32::try_from(bytes).unwrap()).unwrap();
    Bio::read(Sector(at / 512), segments, 0, u32::try_from(bytes).unwrap())
}

pub async fn done(device: &NbdDevice, bio: Bio) -> Status {
    call(device, bio).await.status()
}
