//! fio with its nbd engine and its own checksums, over request sizes from 512 bytes to 1 MiB and depths from 1 to 32.
#![forbid(unsafe_code)]

use forebay_tests::foreign::fio;
use forebay_tests::{Scratch, Server, require};

const MIB: u64 = 1 << 20;
const ORIGIN: u64 = 128 * MIB;

/// A cached device; `bytes` is the size of its cache.
fn serve(scratch: &Scratch, block_size: u32, bytes: u64) -> Server {
    let (origin, cache) = (scratch.file("origin.img"), scratch.file("cache.img"));
    if !std::path::Path::new(&origin).exists() {
        let _path = scratch.sparse("origin.img", ORIGIN);
        let _path = scratch.sparse("cache.img", bytes);
    }
    let table = format!("0 {} writecache s {origin} {cache} {block_size} 2 pause_writeback 0", ORIGIN / 512);
    let export = format!("nbd+unix:///?socket={}", scratch.file("nbd.sock"));
    Server::start(&scratch.file("server"), 1, &["--table", &table, "--export", &export])
}

#[test]
fn what_fio_writes_it_reads_back_at_every_size_and_depth() {
    require(&["fio"]);
    let scratch = Scratch::new();
    let server = serve(&scratch, 4096, 32 * MIB);
    for (size, depth, total) in [
        ("512", 1, "2m"),
        ("512", 32, "4m"),
        ("4k", 4, "16m"),
        ("4k", 32, "32m"),
        ("64k", 16, "64m"),
        ("512k", 32, "128m"),
        ("1m", 8, "128m"),
    ] {
        let options = format!("--rw=randwrite --bs={size} --iodepth={depth} --size={total} --verify_backlog=64");
        fio::verify(server.uri(), scratch.path(), &options);
    }
    server.stop();
}

#[test]
fn mixed_sizes_verify_over_small_and_large_cache_blocks() {
    require(&["fio"]);
    for block_size in [512, 65_536] {
        let scratch = Scratch::new();
        let server = serve(&scratch, block_size, 32 * MIB);
        fio::verify(server.uri(), scratch.path(), "--rw=randrw --bsrange=512-1m --iodepth=32 --size=96m --verify_backlog=32");
        fio::verify(server.uri(), scratch.path(), "--rw=randwrite --bsrange=512-64k --iodepth=16 --size=16m --fsync=32");
        server.stop();
    }
}

#[test]
fn what_fio_flushed_is_there_after_a_kill() {
    require(&["fio"]);
    let scratch = Scratch::new();
    let server = serve(&scratch, 4096, 32 * MIB);
    fio::verify(
        server.uri(),
        scratch.path(),
        "--rw=randwrite --bs=4k --iodepth=32 --size=64m --do_verify=0 --end_fsync=1 --randseed=3",
    );
    server.kill();
    let server = serve(&scratch, 4096, 32 * MIB);
    fio::verify(server.uri(), scratch.path(), "--rw=randwrite --bs=4k --iodepth=32 --size=64m --verify_only=1 --randseed=3");
    server.stop();
}
