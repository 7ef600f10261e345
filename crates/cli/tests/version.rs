//! The binary that the other tests of a whole run use is built for this one.
#![allow(clippy::disallowed_methods, reason = "a test starts the binary as a process of its own")]

use std::process::Command;

#[test]
fn the_binary_says_which_version_it_is() {
    let said = Command::new(env!("CARGO_BIN_EXE_forebay")).arg("--version").output().expect("the binary was built");
    assert_eq!(String::from_utf8_lossy(&said.stdout), format!("forebay {}\n", env!("CARGO_PKG_VERSION")));
    assert!(said.status.success() && said.stderr.is_empty());
}
