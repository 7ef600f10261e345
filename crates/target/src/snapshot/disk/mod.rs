//! The persistent store as bytes: [`format`] has the header, the entries and where they lie, [`round`]
//! what one commit writes. Pure: no reactor, no await.

pub mod format;
pub mod round;

pub use self::format::{Exception, FormatError, Header, Layout};
pub use self::round::{Piece, Position, Retreat, Round};
