//! Ends without a place: what is copied to standard output, and what is hashed, in order; and a copy from
//! standard input.

use std::cell::RefCell;
use std::io::{Error, ErrorKind, Write};
use std::rc::Rc;

use forebay::block::{Ability, Bio, Limits, Op, SectorCount, Status, Target};
use sha2::{Digest, Sha256};

/// Takes bytes in order.
pub trait Take {
    /// Whether zeroes are taken without being sent.
    const ZEROES: bool;

    /// Takes the next bytes.
    fn take(&mut self, bytes: &[u8]) -> Result<(), Error>;
}

/// Standard output.
pub struct Output;

impl Take for Output {
    const ZEROES: bool = false;

    fn take(&mut self, bytes: &[u8]) -> Result<(), Error> {
        std::io::stdout().lock().write_all(bytes)
    }
}

/// A hash in the making.
#[derive(Default)]
pub struct Hash(pub Sha256);

impl Take for Hash {
    const ZEROES: bool = true;

    fn take(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.0.update(bytes);
        Ok(())
    }
}

impl Hash {
    /// The digest in hexadecimal.
    pub fn text(&self) -> String {
        let digit = |four: u8| char::from_digit(u32::from(four), 16).expect("four bits are a digit");
        self.0.clone().finalize().iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
    }
}

struct State<T> {
    taker: T,
    scratch: Vec<u8>,
    error: Option<Error>,
}

/// A target that takes writes in the order of their sectors, one behind the other. It does them at once:
/// who reads a stream slowly holds the copy up, and is meant to.
pub struct InOrder<T> {
    sectors: SectorCount,
    state: RefCell<State<T>>,
}

impl<T: Take> InOrder<T> {
    pub fn new(sectors: SectorCount, taker: T) -> Rc<Self> {
        Rc::new(Self { sectors, state: RefCell::new(State { taker, scratch: Vec::new(), error: None }) })
    }

    /// Takes bytes that are no whole sectors.
    pub fn take(&self, bytes: &[u8]) -> Result<(), Error> {
        self.state.borrow_mut().taker.take(bytes)
    }

    /// What went wrong.
    pub fn error(&self) -> Option<Error> {
        self.state.borrow_mut().error.take()
    }

    /// Looks at who takes the bytes.
    pub fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.state.borrow().taker)
    }
}

impl<T: Take> Target for InOrder<T> {
    fn kind(&self) -> &'static str {
        "stream"
    }

    fn limits(&self) -> Limits {
        let write_zeroes = if T::ZEROES { Ability::Native } else { Ability::No };
        Limits { write_zeroes, discard: Ability::No, ..Limits::unlimited() }
    }

    fn sectors(&self) -> SectorCount {
        self.sectors
    }

    fn submit(&self, bio: Bio) {
        let mut state = self.state.borrow_mut();
        let State { taker, scratch, error } = &mut *state;
        let taken = match bio.op() {
            Op::Write => {
                scratch.resize(usize::try_from(bio.bytes()).expect("a request fits memory"), 0);
                bio.copy_out(scratch);
                taker.take(scratch)
            }
            Op::WriteZeroes if T::ZEROES => take_zeroes(taker, bio.bytes()),
            Op::Flush => Ok(()),
            Op::Read | Op::Discard | Op::WriteZeroes => return bio.end(Status::Unsupported),
        };
        let status = if taken.is_ok() { Status::Ok } else { Status::IoError };
        if let Err(found) = taken {
            error.get_or_insert(found);
        }
        drop(state);
        bio.end(status);
    }
}

fn take_zeroes(taker: &mut impl Take, bytes: u64) -> Result<(), Error> {
    let zeroes = [0; 16 << 10];
    let mut left = bytes;
    while left > 0 {
        let step = left.min(zeroes.len() as u64);
        taker.take(&zeroes[..usize::try_from(step).expect("a step is 16 KiB")])?;
        left -= step;
    }
    Ok(())
}

/// What became of standard output, for people.
pub fn why(error: &Error) -> String {
    match error.kind() {
        ErrorKind::BrokenPipe => "its reader has left".to_owned(),
        _ => error.to_string(),
    }
}
