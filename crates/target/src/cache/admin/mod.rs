//! What people do to a cache: open it, look at it, tell it something, suspend and close it.

mod message;
mod open;
mod side;
mod status;

pub use message::MessageError;
pub use open::{OpenError, Setup, open};
pub use side::{Side, SideStore};
pub use status::CacheStatus;
