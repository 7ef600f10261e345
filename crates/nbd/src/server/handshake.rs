//! The fixed newstyle negotiation as a machine without sockets: bytes in, bytes and steps out.
//!
//! ```text
//!   start() ── greeting ──▶ client
//!   client flags ──▶ option ──▶ answer ──▶ option ──▶ … ──▶ GO or EXPORT_NAME ──▶ Session
//!                      │                                └──▶ ABORT or a violation ──▶ Close
//!                      └──▶ data too long to read: drained, then refused
//! ```
//!
//! 1. One call to [`Handshake::advance`] answers at most one option, so the caller can bound what
//!    it has to send. How the input is cut into calls changes nothing.
//! 2. Memory does not grow with what a client sends: option data is read in place, at most
//!    [`OPTION_BYTES_MAX`] bytes of it; longer data is drained.
//! 3. The selected metadata context belongs to one export; entering another one drops it, and so
//!    does each `SET_META_CONTEXT`, also one that fails.
//! 4. There is no TLS: STARTTLS is unsupported and resets nothing because it never succeeds.
//! 5. A refused option changes nothing but what 3 says.
//!
//! Units: lengths are bytes.
//!
//! Errors: what the protocol can express goes to the client, the rest is a [`Close`].

use super::answer::{self, Refusal};
use super::export::{self, Export};
use super::option::{ContextQuery, ExportQuery, HEADER_BYTES, parse_header};
use super::session::Session;
use crate::wire::{
    CONTEXT_ALLOCATION, Framing, MAGIC_GREETING, MAGIC_OPTION, PAYLOAD_BYTES_MAX, PutWire, Reader, STRING_BYTES_MAX,
    TransmissionFlags, handshake_flag, opt,
};

/// Most option data that is read, in bytes: a name and a few queries of the greatest length.
pub const OPTION_BYTES_MAX: u32 = 32 << 10;
/// Most bytes of input that [`Handshake::advance`] ever needs to see at once.
pub const INPUT_BYTES_MAX: usize = HEADER_BYTES + OPTION_BYTES_MAX as usize;
/// Most options of one handshake; a client that sends more keeps the server busy for nothing.
pub const OPTIONS_MAX: u32 = 256;

/// Reserved bytes at the end of the answer to `EXPORT_NAME`.
const ZEROES: [u8; 124] = [0; 124];

/// Why a connection ends before transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Close {
    /// The client asked for it (ABORT); it has its answer.
    #[error("the client ended the negotiation")]
    Aborted,
    /// The client set flags that were not offered.
    #[error("the client answered the greeting with unknown flags")]
    UnknownFlags,
    /// An option does not begin with its magic number.
    #[error("an option of the client does not begin with IHAVEOPT")]
    BadMagic,
    /// The client is not fixed newstyle but sent something else than `EXPORT_NAME`.
    #[error("the client did not agree to fixed newstyle and sent another option than EXPORT_NAME")]
    NotFixedNewstyle,
    /// An option has more data than anyone would want to read.
    #[error("an option of the client is longer than {PAYLOAD_BYTES_MAX} bytes")]
    OversizedOption,
    /// There were more than [`OPTIONS_MAX`] options.
    #[error("the client sent more than {OPTIONS_MAX} options")]
    TooManyOptions,
    /// `EXPORT_NAME` cannot be refused in words, and it names no export.
    #[error("the client asked for an export that does not exist, with EXPORT_NAME")]
    UnknownExport,
    /// `EXPORT_NAME` on an export that needs a client that knows its block sizes.
    #[error("the client cannot know the block sizes of the export because it used EXPORT_NAME")]
    BlockSizesUnknown,
    /// `EXPORT_NAME` after `EXTENDED_HEADERS`, which the protocol forbids.
    #[error("the client used EXPORT_NAME after EXTENDED_HEADERS")]
    ExportNameAfterExtended,
    /// `EXPORT_NAME` while the server shuts down.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Call again when the input, from its first unconsumed byte, holds at least `bytes` bytes
    /// (at most [`INPUT_BYTES_MAX`]).
    NeedMore {
        /// Bytes in all, more than there were.
        bytes: usize,
    },
    /// Something was consumed; call again with the rest.
    Continue,
    /// The negotiation is over; the rest of the input are requests. Send what is in `out` first.
    Transmit(Session),
    /// Send what is in `out`, then close the connection.
    Close(Close),
}

/// What one call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Progress {
    /// Bytes of the input that are used up.
    pub consumed: usize,
    /// What comes next.
    pub step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    ClientFlags,
    Option,
    Drain { left: u32, kind: u32 },
    Over,
}

/// One client's negotiation.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    /// The client answers options, so it can read replies to them.
    fixed: bool,
    no_zeroes: bool,
    shutting_down: bool,
    framing: Framing,
    /// Name of the export for which `base:allocation` is selected.
    allocation_of: Option<String>,
    options: u32,
}

impl Handshake {
    /// Begins a negotiation: the greeting is appended to `out`.
    #[must_use]
    pub fn start(out: &mut Vec<u8>) -> Self {
        out.put_u64(MAGIC_GREETING);
        out.put_u64(MAGIC_OPTION);
        out.put_u16(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        Self {
            state: State::ClientFlags,
            fixed: false,
            no_zeroes: false,
            shutting_down: false,
            framing: Framing::Simple,
            allocation_of: None,
            options: 0,
        }
    }

    /// From now on each option but ABORT is answered that the server shuts down.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    /// Takes the next step with the bytes received so far; answers are appended to `out`.
    ///
    /// `exports` may change between calls.
    ///
    /// # Panics
    /// If it is called again after [`Step::Transmit`] or [`Step::Close`].
    pub fn advance(&mut self, exports: &[Export], input: &[u8], out: &mut Vec<u8>) -> Progress {
        let progress = match self.state {
            State::ClientFlags => self.client_flags(input),
            State::Option => self.option(exports, input, out),
            State::Drain { left, kind } => self.drain(left, kind, input, out),
            State::Over => panic!("the negotiation is over"),
        };
        if matches!(progress.step, Step::Transmit(_) | Step::Close(_)) {
            self.state = State::Over;
        }
        progress
    }

    fn client_flags(&mut self, input: &[u8]) -> Progress {
        let Some(flags) = Reader(input).u32() else {
            return need(4);
        };
        let fixed = u32::from(handshake_flag::FIXED_NEWSTYLE);
        let no_zeroes = u32::from(handshake_flag::NO_ZEROES);
        if flags & !(fixed | no_zeroes) != 0 {
            return Progress { consumed: 4, step: Step::Close(Close::UnknownFlags) };
        }
        self.fixed = flags & fixed != 0;
        self.no_zeroes = flags & no_zeroes != 0;
        self.state = State::Option;
        Progress { consumed: 4, step: Step::Continue }
    }

    fn option(&mut self, exports: &[Export], input: &[u8], out: &mut Vec<u8>) -> Progress {
        let header = match parse_header(input) {
            Ok(Some(header)) => header,
            Ok(None) => return need(HEADER_BYTES),
            Err(_) => return close(Close::BadMagic),
        };
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        if header.kind == opt::EXPORT_NAME && length > STRING_BYTES_MAX {
            return close(Close::UnknownExport);
        }
        if header.kind != opt::EXPORT_NAME && !self.fixed {
            return close(Close::NotFixedNewstyle);
        }
        if header.length > PAYLOAD_BYTES_MAX {
            return close(Close::OversizedOption);
        }
        if self.options == OPTIONS_MAX {
            return close(Close::TooManyOptions);
        }
        if header.length > OPTION_BYTES_MAX {
            self.options += 1;
            self.state = State::Drain { left: header.length, kind: header.kind };
            return Progress { consumed: HEADER_BYTES, step: Step::Continue };
        }
        let end = HEADER_BYTES + length;
        let Some(data) = input.get(HEADER_BYTES..end) else {
            return need(end);
        };
        self.options += 1;
        let step = self.answer(header.kind, data, exports, out);
        Progress { consumed: end, step }
    }

    /// Drops option data; when all is gone, refuses the option for its length.
    fn drain(&mut self, left: u32, kind: u32, input: &[u8], out: &mut Vec<u8>) -> Progress {
        if input.is_empty() {
            return need(1);
        }
        let dropped = u32::try_from(input.len()).map_or(left, |length| length.min(left));
        let consumed = usize::try_from(dropped).expect("no longer than the input");
        if dropped < left {
            self.state = State::Drain { left: left - dropped, kind };
            return Progress { consumed, step: Step::Continue };
        }
        self.state = State::Option;
        let step = match kind {
            opt::ABORT => abort(out),
            _ if self.shutting_down => refuse(out, kind, Refusal::ShuttingDown),
            opt::LIST | opt::STRUCTURED_REPLY | opt::EXTENDED_HEADERS | opt::STARTTLS => refuse(out, kind, Refusal::Data),
            opt::INFO | opt::GO | opt::LIST_META_CONTEXT => refuse(out, kind, Refusal::Length),
            opt::SET_META_CONTEXT => {
                self.allocation_of = None;
                refuse(out, kind, Refusal::Length)
            }
            _ => refuse(out, kind, Refusal::UnknownOption),
        };
        Progress { consumed, step }
    }

    fn answer(&mut self, kind: u32, data: &[u8], exports: &[Export], out: &mut Vec<u8>) -> Step {
        match kind {
            opt::ABORT => abort(out),
            opt::EXPORT_NAME => self.export_name(data, exports, out),
            _ if self.shutting_down => refuse(out, kind, Refusal::ShuttingDown),
            opt::INFO | opt::GO => self.info(kind, data, exports, out),
            opt::LIST_META_CONTEXT => self.list_contexts(data, exports, out),
            opt::SET_META_CONTEXT => self.set_context(data, exports, out),
            opt::LIST | opt::STRUCTURED_REPLY | opt::EXTENDED_HEADERS | opt::STARTTLS if !data.is_empty() => {
                refuse(out, kind, Refusal::Data)
            }
            opt::LIST => {
                answer::put_list(out, exports);
                ack(out, kind)
            }
            opt::STRUCTURED_REPLY => self.structured(out),
            opt::EXTENDED_HEADERS => {
                self.framing = Framing::Extended;
                ack(out, kind)
            }
            opt::STARTTLS => refuse(out, kind, Refusal::Tls),
            _ => refuse(out, kind, Refusal::UnknownOption),
        }
    }

    fn structured(&mut self, out: &mut Vec<u8>) -> Step {
        if self.framing == Framing::Extended {
            return refuse(out, opt::STRUCTURED_REPLY, Refusal::AlreadyExtended);
        }
        self.framing = Framing::Structured;
        ack(out, opt::STRUCTURED_REPLY)
    }

    fn export_name(&mut self, name: &[u8], exports: &[Export], out: &mut Vec<u8>) -> Step {
        if self.shutting_down {
            return Step::Close(Close::ShuttingDown);
        }
        if self.framing == Framing::Extended {
            return Step::Close(Close::ExportNameAfterExtended);
        }
        let Some((index, export)) = look_up(exports, name) else {
            return Step::Close(Close::UnknownExport);
        };
        if export.needs_block_sizes() {
            return Step::Close(Close::BlockSizesUnknown);
        }
        let session = self.session(index, export, false);
        out.put_u64(export.size_bytes);
        out.put_u16(session.flags().bits());
        if !self.no_zeroes {
            out.extend_from_slice(&ZEROES);
        }
        Step::Transmit(session)
    }

    fn info(&mut self, kind: u32, data: &[u8], exports: &[Export], out: &mut Vec<u8>) -> Step {
        let Some(query) = ExportQuery::parse(data) else {
            return refuse(out, kind, Refusal::Syntax);
        };
        let Some((index, export)) = look_up(exports, query.name) else {
            return refuse(out, kind, Refusal::UnknownExport);
        };
        let session = self.session(index, export, query.wanted.block_size());
        let blind = export.needs_block_sizes() && !query.wanted.block_size();
        answer::put_info(out, kind, export, session.flags(), &query, blind);
        if blind {
            return refuse(out, kind, Refusal::BlockSize);
        }
        let step = ack(out, kind);
        if kind == opt::GO { Step::Transmit(session) } else { step }
    }

    fn list_contexts(&mut self, data: &[u8], exports: &[Export], out: &mut Vec<u8>) -> Step {
        let kind = opt::LIST_META_CONTEXT;
        if self.framing == Framing::Simple {
            return refuse(out, kind, Refusal::Framing);
        }
        let Some(query) = ContextQuery::parse(data) else {
            return refuse(out, kind, Refusal::Syntax);
        };
        if look_up(exports, query.name).is_none() {
            return refuse(out, kind, Refusal::UnknownExport);
        }
        if query.all || query.allocation {
            // The id of a listing is reserved.
            answer::put_context(out, kind, 0);
        }
        ack(out, kind)
    }

    fn set_context(&mut self, data: &[u8], exports: &[Export], out: &mut Vec<u8>) -> Step {
        let kind = opt::SET_META_CONTEXT;
        self.allocation_of = None;
        if self.framing == Framing::Simple {
            return refuse(out, kind, Refusal::Framing);
        }
        let Some(query) = ContextQuery::parse(data) else {
            return refuse(out, kind, Refusal::Syntax);
        };
        let Some((_, export)) = look_up(exports, query.name) else {
            return refuse(out, kind, Refusal::UnknownExport);
        };
        if query.allocation {
            self.allocation_of = Some(export.name.clone());
            answer::put_context(out, kind, CONTEXT_ALLOCATION);
        }
        ack(out, kind)
    }

    /// The session that this export would be used in, as negotiated so far.
    fn session(&self, index: usize, export: &Export, block_size_known: bool) -> Session {
        let flags = if self.framing == Framing::Simple { export.flags } else { export.flags | TransmissionFlags::SEND_DF };
        let allocation = self.allocation_of.as_ref() == Some(&export.name);
        Session::new(index, export, flags, self.framing, allocation, block_size_known)
    }
}

fn look_up<'e>(exports: &'e [Export], name: &[u8]) -> Option<(usize, &'e Export)> {
    let index = export::find(exports, name)?;
    exports.get(index).map(|export| (index, export))
}

fn abort(out: &mut Vec<u8>) -> Step {
    answer::ack(out, opt::ABORT);
    Step::Close(Close::Aborted)
}

fn ack(out: &mut Vec<u8>, option: u32) -> Step {
    answer::ack(out, option);
    Step::Continue
}

fn refuse(out: &mut Vec<u8>, option: u32, refusal: Refusal) -> Step {
    answer::refuse(out, option, refusal);
    Step::Continue
}

fn need(bytes: usize) -> Progress {
    Progress { consumed: 0, step: Step::NeedMore { bytes } }
}

fn close(reason: Close) -> Progress {
    Progress { consumed: 0, step: Step::Close(reason) }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
