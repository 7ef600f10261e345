//! The persistent store as bytes: [`format`] has the header, the entries and where they lie, [`list`]
//! reads the entries of a device, [`round`] has what one commit writes. Pure: no reactor, no await.

pub mod format;
pub mod list;
pub mod round;

pub use self::format::{Exception, FormatError, Header, Layout};
pub use self::list::List;
pub use self::round::{Piece, Position, Retreat, Round};
