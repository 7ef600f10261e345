//! A small raw NBD client: any bytes a test wants to send, in each framing.

use std::collections::BTreeMap;
use std::io::{Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISCONNECT: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const ZEROES: u16 = 6;
pub const STATUS: u16 = 7;

pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const DF: u16 = 4;
pub const ONE: u16 = 8;
pub const FAST: u16 = 16;
const PAYLOAD: u16 = 32;

const OPTION: u64 = 0x4948_4156_454f_5054;
const OPT_GO: u32 = 7;
const OPT_STRUCTURED: u32 = 8;
const OPT_SET_CONTEXT: u32 = 10;
const OPT_EXTENDED: u32 = 11;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Simple,
    Structured,
    Extended,
}

impl Framing {
    pub const ALL: [Self; 3] = [Self::Simple, Self::Structured, Self::Extended];
}

/// What a request was answered with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub cookie: u64,
    pub error: u32,
    pub data: Vec<u8>,
    /// Length and state.
    pub extents: Vec<(u64, u64)>,
}

pub trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

pub struct Client {
    pub stream: Box<dyn Stream + Send>,
    pub framing: Framing,
    pub size: u64,
    pub flags: u16,
    pub minimum: u32,
    next: u64,
    /// Lengths and offsets of the reads in flight.
    reads: BTreeMap<u64, (u64, u64)>,
}

pub fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(super::LONG)).unwrap();
    stream.set_write_timeout(Some(super::LONG)).unwrap();
    stream
}

pub fn option(kind: u32, data: &[u8]) -> Vec<u8> {
    let mut out = OPTION.to_be_bytes().to_vec();
    out.extend(kind.to_be_bytes());
    out.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
    out.extend(data);
    out
}

fn prefixed(text: &str) -> Vec<u8> {
    [&u32::try_from(text.len()).unwrap().to_be_bytes()[..], text.as_bytes()].concat()
}

impl Client {
    /// Enters the export `name`; `knows` asks for the block sizes.
    pub fn enter(path: &Path, name: &str, framing: Framing, knows: bool) -> Self {
        Self::over(Box::new(connect(path)), name, framing, knows).unwrap()
    }

    pub fn over(stream: Box<dyn Stream + Send>, name: &str, framing: Framing, knows: bool) -> Result<Self> {
        let mut client = Self { stream, framing, size: 0, flags: 0, minimum: 1, next: 0, reads: BTreeMap::new() };
        let mut greeting = [0; 18];
        client.stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        client.stream.write_all(&3_u32.to_be_bytes())?;
        match framing {
            Framing::Simple => {}
            Framing::Structured => client.negotiate(OPT_STRUCTURED, &[])?,
            Framing::Extended => client.negotiate(OPT_EXTENDED, &[])?,
        }
        if framing != Framing::Simple {
            let query = [prefixed(name), 1_u32.to_be_bytes().to_vec(), prefixed("base:allocation")].concat();
            client.negotiate(OPT_SET_CONTEXT, &query)?;
        }
        let wanted: &[u8] = if knows { &[0, 1, 0, 3] } else { &[0, 0] };
        client.negotiate(OPT_GO, &[&prefixed(name), wanted].concat())?;
        Ok(client)
    }

    /// Sends an option and takes its answers, all of which must be good.
    fn negotiate(&mut self, kind: u32, data: &[u8]) -> Result<()> {
        self.stream.write_all(&option(kind, data))?;
        loop {
            let _magic = self.u64()?;
            assert_eq!(self.u32()?, kind);
            let answer = self.u32()?;
            let length = self.u32()?;
            let payload = self.bytes(u64::from(length))?;
            match answer {
                1 => return Ok(()),
                3 if payload.starts_with(&[0, 0]) => {
                    self.size = u64::from_be_bytes(payload[2..10].try_into().unwrap());
                    self.flags = u16::from_be_bytes(payload[10..12].try_into().unwrap());
                }
                3 if payload.starts_with(&[0, 3]) => {
                    self.minimum = u32::from_be_bytes(payload[2..6].try_into().unwrap());
                }
                3 | 4 => {}
                refusal => panic!("option {kind} was refused with {refusal:#x}"),
            }
        }
    }

    fn u16(&mut self) -> Result<u16> {
        let mut bytes = [0; 2];
        self.stream.read_exact(&mut bytes)?;
        Ok(u16::from_be_bytes(bytes))
    }

    fn u32(&mut self) -> Result<u32> {
        let mut bytes = [0; 4];
        self.stream.read_exact(&mut bytes)?;
        Ok(u32::from_be_bytes(bytes))
    }

    fn u64(&mut self) -> Result<u64> {
        let mut bytes = [0; 8];
        self.stream.read_exact(&mut bytes)?;
        Ok(u64::from_be_bytes(bytes))
    }

    fn bytes(&mut self, length: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(length).unwrap()];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// The header of the next request, and its cookie.
    pub fn header(&mut self, command: u16, flags: u16, offset: u64, length: u64) -> (Vec<u8>, u64) {
        self.next += 1;
        let cookie = self.next.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if command == READ {
            self.reads.insert(cookie, (offset, length));
        }
        let extended = self.framing == Framing::Extended;
        let mut out = if extended { 0x21e4_1c71_u32 } else { 0x2560_9513 }.to_be_bytes().to_vec();
        let flags = if extended && command == WRITE { flags | PAYLOAD } else { flags };
        out.extend(flags.to_be_bytes());
        out.extend(command.to_be_bytes());
        out.extend(cookie.to_be_bytes());
        out.extend(offset.to_be_bytes());
        if extended {
            out.extend(length.to_be_bytes());
        } else {
            out.extend(u32::try_from(length).unwrap().to_be_bytes());
        }
        (out, cookie)
    }

    /// Sends a request without waiting for its answer.
    pub fn send(&mut self, command: u16, flags: u16, offset: u64, length: u64, payload: &[u8]) -> u64 {
        let (header, cookie) = self.header(command, flags, offset, length);
        self.stream.write_all(&header).unwrap();
        self.stream.write_all(payload).unwrap();
        cookie
    }

    /// Takes the next answer, whichever request it belongs to.
    pub fn answer(&mut self) -> Result<Answer> {
        let mut answer = Answer::default();
        loop {
            let magic = self.u32()?;
            if magic == 0x6744_6698 {
                answer.error = self.u32()?;
                answer.cookie = self.u64()?;
                let read = self.reads.remove(&answer.cookie);
                if let Some((_, length)) = read
                    && answer.error == 0
                {
                    assert_eq!(self.framing, Framing::Simple, "reads are answered in chunks where those were negotiated");
                    answer.data = self.bytes(length)?;
                }
                return Ok(answer);
            }
            let flags = self.u16()?;
            let kind = self.u16()?;
            answer.cookie = self.u64()?;
            let length = match magic {
                0x668e_33ef => u64::from(self.u32()?),
                0x6e8a_278c => {
                    let _offset = self.u64()?;
                    self.u64()?
                }
                other => panic!("a reply begins with {other:#x}"),
            };
            let payload = self.bytes(length)?;
            self.chunk(kind, &payload, &mut answer);
            if flags & 1 != 0 {
                self.reads.remove(&answer.cookie);
                return Ok(answer);
            }
        }
    }

    fn chunk(&mut self, kind: u16, payload: &[u8], answer: &mut Answer) {
        let number =
            |at: usize, bytes: usize| payload[at..at + bytes].iter().fold(0_u64, |sum, &byte| sum << 8 | u64::from(byte));
        match kind {
            0 => assert!(payload.is_empty()),
            1 => {
                let (offset, length) = self.reads[&answer.cookie];
                assert_eq!((number(0, 8), payload.len() as u64), (offset, length + 8), "reads are answered in one piece");
                answer.data = payload[8..].to_vec();
            }
            5 => {
                answer.extents = payload[4..].chunks(8).map(|one| (be(&one[..4]), be(&one[4..]))).collect();
            }
            6 => {
                answer.extents = payload[8..].chunks(16).map(|one| (be(&one[..8]), be(&one[8..]))).collect();
            }
            0x8001 | 0x8002 => answer.error = u32::try_from(number(0, 4)).unwrap(),
            other => panic!("a chunk of kind {other:#x}"),
        }
    }

    /// Sends a request and takes its answer; nothing else may be in flight.
    pub fn call(&mut self, command: u16, flags: u16, offset: u64, length: u64, payload: &[u8]) -> Answer {
        let cookie = self.send(command, flags, offset, length, payload);
        let answer = self.answer().unwrap();
        assert_eq!(answer.cookie, cookie);
        answer
    }

    pub fn read(&mut self, offset: u64, length: u64) -> Vec<u8> {
        let answer = self.call(READ, 0, offset, length, &[]);
        assert_eq!(answer.error, 0);
        answer.data
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        assert_eq!(self.call(WRITE, 0, offset, bytes.len() as u64, bytes).error, 0);
    }

    /// Whether the server has closed the connection, with nothing left to read.
    pub fn is_at_end(&mut self) -> bool {
        let mut one = [0];
        // A connection that is torn down with bytes unread is as closed as one that ended.
        match self.stream.read(&mut one) {
            Ok(read) => read == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

fn be(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}
