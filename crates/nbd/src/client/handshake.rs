//! The fixed newstyle negotiation of a client: it asks for the best framing that the server has, for
//! `base:allocation`, and for the export's block sizes, and then enters the export.
//!
//! ```text
//!   greeting ─▶ EXTENDED_HEADERS ── refused ─▶ STRUCTURED_REPLY ── refused ─────┐
//!                     └─ granted ─▶ SET_META_CONTEXT ◀─┘ granted                ▼
//!                                          └──────────────────────────────────▶ GO ─▶ Entered
//!                                                             unknown to the server ─▶ EXPORT_NAME
//! ```
//!
//! 1. How the input is cut into calls changes nothing. Each call takes at most one answer.
//! 2. Memory does not grow with what a server sends: an answer has at most [`ANSWER_BYTES_MAX`] bytes, an
//!    option at most [`ANSWERS_MAX`] answers.
//! 3. What is entered is sound: block sizes are powers of two that fit each other, the size is below 2^63.
//!
//! Units: bytes. Errors: [`Refused`], a part of a sentence that begins with the server's address.

use crate::wire::{
    ALLOCATION, Framing, MAGIC_GREETING, MAGIC_OPTION, MAGIC_OPTION_REPLY, PAYLOAD_BYTES_MAX, PutWire, Reader, STRING_BYTES_MAX,
    TransmissionFlags, handshake_flag, info, opt, rep,
};

/// Second number of a greeting of the protocol's first version.
const MAGIC_OLDSTYLE: u64 = 0x0000_4202_8186_1253;
/// Bytes of the greeting.
const GREETING_BYTES: usize = 18;
/// Bytes of the head of an answer.
const HEAD_BYTES: usize = 20;
/// Longest answer that is read: two strings and some numbers.
const ANSWER_BYTES_MAX: u32 = 16 << 10;
/// Most answers to one option.
const ANSWERS_MAX: u32 = 64;
/// Bytes of the answer to `EXPORT_NAME`, and of the zeroes behind it.
const EXPORT_BYTES: usize = 10;
const ZEROES_BYTES: usize = 124;
/// Block sizes of servers that tell none.
const MINIMUM_DEFAULT: u32 = 1;
const PREFERRED_DEFAULT: u32 = 4096;
/// Largest minimum block size that the protocol allows.
const MINIMUM_MAX: u32 = 1 << 16;

/// Why there is nothing to be entered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Another protocol.
    #[error("what answers is no NBD server")]
    NotNbd,
    /// The protocol of 2011 and before.
    #[error("the server speaks the old NBD protocol only: use one that speaks fixed newstyle")]
    Oldstyle,
    /// The server answers something that makes no sense here.
    #[error("the server broke the protocol in the handshake: {0}")]
    Broken(&'static str),
    /// The export's block sizes or size contradict the protocol.
    #[error("the server offers {0}, which the protocol forbids")]
    Unsound(String),
    /// TLS only.
    #[error("the server wants TLS, which is not supported: let it serve this client without")]
    Tls,
    /// No such export.
    #[error("the server has no export {export:?}{said}")]
    Unknown {
        /// Asked for.
        export: String,
        /// What the server said, as the end of a sentence.
        said: String,
    },
    /// Any other refusal.
    #[error("the server refuses the export {export:?}{said}")]
    Other {
        /// Asked for.
        export: String,
        /// What the server said, as the end of a sentence.
        said: String,
    },
}

/// An export that was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Its size, below 2^63.
    pub size_bytes: u64,
    /// What it can do.
    pub flags: TransmissionFlags,
    /// How requests and replies are framed.
    pub framing: Framing,
    /// Smallest unit of a request, a power of two.
    pub minimum_bytes: u32,
    /// Unit that the server does best with, a power of two.
    pub preferred_bytes: u32,
    /// Longest payload.
    pub maximum_bytes: u32,
    /// Id of `base:allocation`, where the server tells it.
    pub allocation: Option<u32>,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Call again when the input holds at least so many bytes from its first unconsumed one on.
    NeedMore(usize),
    /// Something was consumed; send what is in `out`, and call again with the rest.
    Continue,
    /// Requests may be sent; the rest of the input are replies.
    Enter(Entered),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    /// Answers to this option are awaited.
    Option(u32),
    ExportName,
}

/// A negotiation with one server.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    export: String,
    no_zeroes: bool,
    /// Answers to the option so far.
    answers: u32,
    /// Whether the server told the export itself.
    told: bool,
    entered: Entered,
}

impl Handshake {
    /// A negotiation for `export`; the server speaks first.
    #[must_use]
    pub fn new(export: &str) -> Self {
        let entered = Entered {
            size_bytes: 0,
            flags: TransmissionFlags::HAS_FLAGS,
            framing: Framing::Simple,
            minimum_bytes: MINIMUM_DEFAULT,
            preferred_bytes: PREFERRED_DEFAULT,
            maximum_bytes: PAYLOAD_BYTES_MAX,
            allocation: None,
        };
        Self { state: State::Greeting, export: export.to_owned(), no_zeroes: false, answers: 0, told: false, entered }
    }

    /// Takes the next step with the bytes received so far: how many of them are used up, and what comes
    /// next. What is to be sent is appended to `out`.
    ///
    /// # Errors
    /// [`Refused`]; nothing more can be done with the connection.
    pub fn advance(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, Step), Refused> {
        match self.state {
            State::Greeting => self.greeting(input, out),
            State::Option(option) => self.answer(option, input, out),
            State::ExportName => self.export_name(input),
        }
    }

    fn greeting(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, Step), Refused> {
        let mut reader = Reader(input);
        let Some(magic) = reader.u64() else { return Ok((0, Step::NeedMore(GREETING_BYTES))) };
        if magic != MAGIC_GREETING {
            return Err(Refused::NotNbd);
        }
        let (Some(magic), Some(flags)) = (reader.u64(), reader.u16()) else { return Ok((0, Step::NeedMore(GREETING_BYTES))) };
        match magic {
            MAGIC_OPTION if flags & handshake_flag::FIXED_NEWSTYLE != 0 => {}
            MAGIC_OPTION | MAGIC_OLDSTYLE => return Err(Refused::Oldstyle),
            _ => return Err(Refused::NotNbd),
        }
        self.no_zeroes = flags & handshake_flag::NO_ZEROES != 0;
        let answer = handshake_flag::FIXED_NEWSTYLE | (flags & handshake_flag::NO_ZEROES);
        out.put_u32(u32::from(answer));
        self.ask(opt::EXTENDED_HEADERS, &[], out);
        Ok((GREETING_BYTES, Step::Continue))
    }

    /// Sends an option and waits for its answers.
    fn ask(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) {
        out.put_u64(MAGIC_OPTION);
        out.put_u32(option);
        out.put_u32(length_u32(data));
        out.extend_from_slice(data);
        self.answers = 0;
        self.state = State::Option(option);
    }

    fn ask_context(&mut self, out: &mut Vec<u8>) {
        let mut data = Vec::new();
        put_string(&mut data, &self.export);
        data.put_u32(1);
        put_string(&mut data, ALLOCATION);
        self.ask(opt::SET_META_CONTEXT, &data, out);
    }

    fn ask_go(&mut self, out: &mut Vec<u8>) {
        let mut data = Vec::new();
        put_string(&mut data, &self.export);
        data.put_u16(1);
        data.put_u16(info::BLOCK_SIZE);
        self.ask(opt::GO, &data, out);
    }

    /// Takes one answer to `option`.
    fn answer(&mut self, option: u32, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, Step), Refused> {
        let mut reader = Reader(input);
        let head = (reader.u64(), reader.u32(), reader.u32(), reader.u32());
        let (Some(magic), Some(to), Some(kind), Some(length)) = head else { return Ok((0, Step::NeedMore(HEAD_BYTES))) };
        if magic != MAGIC_OPTION_REPLY || to != option {
            return Err(Refused::Broken("an answer belongs to no option"));
        }
        if length > ANSWER_BYTES_MAX {
            return Err(Refused::Broken("an answer is longer than anyone would read"));
        }
        let end = HEAD_BYTES + usize::try_from(length).expect("at most ANSWER_BYTES_MAX");
        let Some(data) = reader.bytes(length) else { return Ok((0, Step::NeedMore(end))) };
        self.answers += 1;
        if self.answers > ANSWERS_MAX {
            return Err(Refused::Broken("it answers an option without end"));
        }
        let step = if kind >= rep::ERR { self.refused(option, kind, data, out)? } else { self.granted(option, kind, data, out)? };
        Ok((end, step))
    }

    fn granted(&mut self, option: u32, kind: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Step, Refused> {
        match (option, kind) {
            (opt::EXTENDED_HEADERS, rep::ACK) => {
                self.entered.framing = Framing::Extended;
                self.ask_context(out);
            }
            (opt::STRUCTURED_REPLY, rep::ACK) => {
                self.entered.framing = Framing::Structured;
                self.ask_context(out);
            }
            (opt::SET_META_CONTEXT, rep::META_CONTEXT) => self.context(data)?,
            (opt::SET_META_CONTEXT, rep::ACK) => self.ask_go(out),
            (opt::GO, rep::INFO) => self.information(data)?,
            (opt::GO, rep::ACK) if self.told => return self.enter(),
            (opt::GO, rep::ACK) => return Err(Refused::Broken("it does not tell the size of the export")),
            _ => return Err(Refused::Broken("an answer does not fit its option")),
        }
        Ok(Step::Continue)
    }

    fn refused(&mut self, option: u32, kind: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Step, Refused> {
        match option {
            _ if kind == rep::ERR_TLS_REQD => return Err(Refused::Tls),
            opt::EXTENDED_HEADERS => self.ask(opt::STRUCTURED_REPLY, &[], out),
            opt::STRUCTURED_REPLY | opt::SET_META_CONTEXT => {
                self.entered.allocation = None;
                self.ask_go(out);
            }
            _ if kind == rep::ERR_UNSUP && self.entered.framing != Framing::Extended => {
                let name = self.export.clone();
                self.ask(opt::EXPORT_NAME, name.as_bytes(), out);
                self.state = State::ExportName;
            }
            _ => {
                let (export, said) = (self.export.clone(), said(data));
                let unknown = kind == rep::ERR_UNKNOWN;
                return Err(if unknown { Refused::Unknown { export, said } } else { Refused::Other { export, said } });
            }
        }
        Ok(Step::Continue)
    }

    fn context(&mut self, data: &[u8]) -> Result<(), Refused> {
        let mut reader = Reader(data);
        let id = reader.u32().ok_or(Refused::Broken("a metadata context is cut short"))?;
        if reader.0 != ALLOCATION.as_bytes() {
            return Err(Refused::Broken("it tells a metadata context that was not asked for"));
        }
        self.entered.allocation = Some(id);
        Ok(())
    }

    fn information(&mut self, data: &[u8]) -> Result<(), Refused> {
        let mut reader = Reader(data);
        let short = Refused::Broken("the information about the export is cut short");
        match reader.u16().ok_or_else(|| short.clone())? {
            info::EXPORT => {
                let (Some(size), Some(flags)) = (reader.u64(), reader.u16()) else { return Err(short) };
                self.entered.size_bytes = size;
                self.entered.flags = TransmissionFlags::from_bits(flags);
                self.told = true;
            }
            info::BLOCK_SIZE => {
                let sizes = (reader.u32(), reader.u32(), reader.u32());
                let (Some(minimum), Some(preferred), Some(maximum)) = sizes else { return Err(short) };
                self.entered.minimum_bytes = minimum;
                self.entered.preferred_bytes = preferred;
                self.entered.maximum_bytes = maximum;
            }
            _ => {}
        }
        Ok(())
    }

    fn export_name(&mut self, input: &[u8]) -> Result<(usize, Step), Refused> {
        let all = if self.no_zeroes { EXPORT_BYTES } else { EXPORT_BYTES + ZEROES_BYTES };
        let mut reader = Reader(input);
        let (Some(size), Some(flags)) = (reader.u64(), reader.u16()) else { return Ok((0, Step::NeedMore(all))) };
        if input.len() < all {
            return Ok((0, Step::NeedMore(all)));
        }
        self.entered.size_bytes = size;
        self.entered.flags = TransmissionFlags::from_bits(flags);
        Ok((all, self.enter()?))
    }

    /// Looks whether what was told is sound (3).
    fn enter(&mut self) -> Result<Step, Refused> {
        let Entered { size_bytes, minimum_bytes: minimum, preferred_bytes: preferred, maximum_bytes: maximum, .. } = self.entered;
        if i64::try_from(size_bytes).is_err() {
            return Err(Refused::Unsound(format!("an export of {size_bytes} bytes")));
        }
        let sound = minimum.is_power_of_two()
            && minimum <= MINIMUM_MAX
            && preferred.is_power_of_two()
            && preferred >= minimum
            && maximum >= preferred.min(PAYLOAD_BYTES_MAX)
            && (maximum == u32::MAX || maximum.is_multiple_of(minimum));
        if !sound {
            return Err(Refused::Unsound(format!("block sizes of {minimum}, {preferred} and {maximum} bytes")));
        }
        Ok(Step::Enter(self.entered))
    }
}

/// What a server said with its refusal, as the end of a sentence.
fn said(data: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(data.get(..STRING_BYTES_MAX).unwrap_or(data))
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    if text.trim().is_empty() { String::new() } else { format!(": it says {:?}", text.trim()) }
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.put_u32(length_u32(text.as_bytes()));
    out.extend_from_slice(text.as_bytes());
}

fn length_u32(data: &[u8]) -> u32 {
    u32::try_from(data.len()).expect("names are far below 4 GiB")
}

#[cfg(test)]
mod tests;
