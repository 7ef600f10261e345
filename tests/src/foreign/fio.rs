//! fio with its NBD engine and checksums of its own: what it wrote, it must read back.

use crate::run::{self, Ended};
use std::path::Path;

/// Runs one job against the export at `uri` and checks the data; `options` are fio's, separated by blanks.
///
/// fio leaves its files in `folder`. It fails with the first byte that differs, and with any error.
pub fn check(uri: &str, folder: &Path, options: &str) -> Ended {
    run::outcome(120, &words(uri, folder, options))
}

/// The same, which must find nothing wrong.
pub fn verify(uri: &str, folder: &Path, options: &str) {
    run::ok(120, &words(uri, folder, options));
}

fn words(uri: &str, folder: &Path, options: &str) -> Vec<String> {
    let (uri, folder) = (format!("--uri={uri}"), format!("--aux-path={}", folder.display()));
    let fixed = ["fio", "--name=v", "--ioengine=nbd", &uri, "--verify=crc32c", "--verify_fatal=1", &folder];
    fixed.into_iter().chain(options.split(' ')).map(str::to_owned).collect()
}
