//! Programs of other projects that the tests need: their servers, fio's check of data, and block devices of this machine.
//!
//! ```text
//!   Peer: any NBD server                fio ─ NBD ─▶ URI            file ◀─ Loop
//!                                                                   URI ◀─ nbdfuse ◀─ Loop = Attached
//! ```

mod attached;
pub mod fio;
mod loops;
mod peer;

pub use self::attached::Attached;
pub use self::loops::{Loop, unmount};
pub use self::peer::Peer;
