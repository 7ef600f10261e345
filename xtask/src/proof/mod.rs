//! How good the tests are: which lines none of them runs, and which changes of the code none of them notices.
//!
//! [`groups`] is the list of files that both are counted for.

pub mod coverage;
mod groups;
pub mod mutants;
