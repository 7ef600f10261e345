//! The write cache, compatible with dm-writecache.

pub mod disk;
pub mod index;
