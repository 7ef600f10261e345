//! A small NBD client of our own: one request at a time over a unix socket, and any bytes a test wants to send.
//!
//! Fixed newstyle with `NBD_OPT_GO` and simple replies. Units: bytes.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const OPTION_MAGIC: u64 = 0x4948_4156_454F_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;

/// Command types.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write.
    pub const WRITE: u16 = 1;
    /// Disconnect.
    pub const DISCONNECT: u16 = 2;
    /// Flush.
    pub const FLUSH: u16 = 3;
    /// Trim.
    pub const TRIM: u16 = 4;
    /// Write zeroes.
    pub const WRITE_ZEROES: u16 = 6;
}

/// Command flag: durable before the reply.
pub const FUA: u16 = 1;

/// A connection in the transmission phase.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    size: u64,
    flags: u16,
    cookie: u64,
}

impl Client {
    /// Connects to the export that a `nbd+unix:///NAME?socket=PATH` URI names.
    ///
    /// # Errors
    /// When the server is not there or refuses.
    ///
    /// # Panics
    /// When the URI is of another kind.
    pub fn connect(uri: &str) -> Result<Self> {
        let (name, socket) = split(uri);
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_mins(1)))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        let mut hello = 3_u32.to_be_bytes().to_vec(); // fixed newstyle, no zeroes
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(OPT_GO.to_be_bytes());
        hello.extend(wire_length(name.len() + 6));
        hello.extend(wire_length(name.len()));
        hello.extend(name.as_bytes());
        hello.extend(0_u16.to_be_bytes());
        stream.write_all(&hello)?;
        let mut client = Self { stream, size: 0, flags: 0, cookie: 0 };
        while !client.option_reply()? {}
        Ok(client)
    }

    /// Size of the export.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Transmission flags of the export.
    pub fn flags(&self) -> u16 {
        self.flags
    }

    /// The raw stream, for tests that break the protocol.
    pub fn stream(&mut self) -> &mut UnixStream {
        &mut self.stream
    }

    /// Reads `length` bytes.
    ///
    /// # Errors
    /// The server's error, or a broken connection.
    pub fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>> {
        self.send(command::READ, 0, offset, length, &[])?;
        self.reply()?;
        let mut bytes = vec![0; usize::try_from(length).expect("32 bits fit")];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes; `flags` is 0 or `FUA`.
    ///
    /// # Errors
    /// The server's error, or a broken connection.
    pub fn write(&mut self, offset: u64, bytes: &[u8], flags: u16) -> Result<()> {
        let length = u32::try_from(bytes.len()).expect("a request");
        self.send(command::WRITE, flags, offset, length, bytes)?;
        self.reply()
    }

    /// Makes everything durable whose reply has arrived.
    ///
    /// # Errors
    /// The server's error, or a broken connection.
    pub fn flush(&mut self) -> Result<()> {
        self.simple(command::FLUSH, 0, 0, 0)
    }

    /// Any command without a payload in either direction.
    ///
    /// # Errors
    /// The server's error, or a broken connection.
    pub fn simple(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> Result<()> {
        self.send(command, flags, offset, length, &[])?;
        self.reply()
    }

    /// Sends a request and does not wait for its reply.
    ///
    /// # Errors
    /// A broken connection.
    pub fn send(&mut self, command: u16, flags: u16, offset: u64, length: u32, payload: &[u8]) -> Result<()> {
        self.cookie += 1;
        let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
        request.extend(flags.to_be_bytes());
        request.extend(command.to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(length.to_be_bytes());
        self.stream.write_all(&request)?;
        self.stream.write_all(payload)
    }

    fn reply(&mut self) -> Result<()> {
        if self.u32()? != REPLY_MAGIC {
            return Err(Error::new(ErrorKind::InvalidData, "not a simple reply"));
        }
        let error = self.u32()?;
        let cookie = self.u64()?;
        if cookie != self.cookie {
            return Err(Error::new(ErrorKind::InvalidData, format!("a reply to {cookie}, not to {}", self.cookie)));
        }
        match i32::try_from(error) {
            Ok(0) => Ok(()),
            Ok(code) => Err(Error::from_raw_os_error(code)),
            Err(_) => Err(Error::new(ErrorKind::InvalidData, format!("error number {error}"))),
        }
    }

    /// Takes one reply to the option; true when it was the last one.
    fn option_reply(&mut self) -> Result<bool> {
        if self.u64()? != OPTION_REPLY_MAGIC {
            return Err(Error::new(ErrorKind::InvalidData, "not an option reply"));
        }
        let _option = self.u32()?;
        let kind = self.u32()?;
        let length = self.u32()?;
        let mut payload = vec![0; usize::try_from(length).expect("32 bits fit")];
        self.stream.read_exact(&mut payload)?;
        match kind {
            REP_ACK => Ok(true),
            REP_INFO if payload.starts_with(&[0, 0]) && payload.len() == 12 => {
                self.size = u64::from_be_bytes(payload[2..10].try_into().expect("eight bytes"));
                self.flags = u16::from_be_bytes(payload[10..].try_into().expect("two bytes"));
                Ok(false)
            }
            REP_INFO => Ok(false),
            other => Err(Error::other(format!("the server refused the export, reply {other:#x}"))),
        }
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
}

/// Name and socket path of a `nbd+unix` URI.
fn split(uri: &str) -> (&str, &str) {
    let rest = uri.strip_prefix("nbd+unix:///").unwrap_or_else(|| panic!("not a unix socket URI: {uri}"));
    rest.split_once("?socket=").unwrap_or_else(|| panic!("no socket in {uri}"))
}

fn wire_length(length: usize) -> [u8; 4] {
    u32::try_from(length).expect("a short name").to_be_bytes()
}
