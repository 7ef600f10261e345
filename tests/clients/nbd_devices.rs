//! NBD servers as devices of a stack.
#![forbid(unsafe_code)]

use forebay_tests::{Scratch, Server, require, run};
use std::path::Path;

const MIB: u64 = 1 << 20;

/// Serves `table` at `name.sock`.
fn serve(scratch: &Scratch, name: &str, table: &str) -> Server {
    let export = format!("nbd+unix:///{name}?socket={}", scratch.file(&format!("{name}.sock")));
    Server::start(&scratch.file(name), 1, &["--table", table, "--export", &export])
}

/// Copies random bytes onto a device and back.
fn copy_there_and_back(scratch: &Scratch, uri: &str, bytes: u64) {
    let mut content = vec![0; usize::try_from(bytes).expect("it fits in memory")];
    fastrand::Rng::with_seed(bytes).fill(&mut content);
    let (image, back) = (scratch.write("image", &content), scratch.file("back"));
    run::ok(60, &["nbdcopy", "--flush", &image, uri]);
    run::ok(60, &["nbdcopy", uri, &back]);
    assert_eq!(run::sha256(Path::new(&image)), run::sha256(Path::new(&back)));
}

#[test]
fn a_write_cache_stands_on_an_origin_far_away() {
    require(&["nbdcopy"]);
    let scratch = Scratch::new();
    let (image, fast) = (scratch.sparse("origin.img", 32 * MIB), scratch.sparse("fast.img", 8 * MIB));
    let far = serve(&scratch, "far", &format!("0 {} linear {image} 0", 32 * MIB / 512));
    let near = serve(&scratch, "near", &format!("0 {} writecache s {} {fast} 4096 0", 32 * MIB / 512, far.uri()));
    copy_there_and_back(&scratch, near.uri(), 32 * MIB);
    near.stop();
    let text = far.stderr();
    assert!(!text.contains("hung up on"), "the client keeps to the protocol: {text}");
    far.stop();
}
