//! Is the harness blind? What the other tests rely on to see a fault is shown faults that are known, and must see them.
//!
//! ```text
//!   fio's check ─▶ our server ─▶ a FUSE export of QEMU that mixes requests up ....... must fail
//!   every client ─▶ a server whose reads, writes or flushes fail .................... must fail
//!   fsync ─▶ file system ─▶ loop device ─▶ nbdfuse ─▶ our server's count of flushes . must rise, and must not without barriers
//! ```
//!
//! Each is also shown something healthy, of which it must think well.
#![forbid(unsafe_code)]

use forebay_tests::foreign::{Attached, Peer, fio, unmount};
use forebay_tests::nbd::{Client, FUA};
use forebay_tests::run::{self, Ended};
use forebay_tests::server::{binary, flushes};
use forebay_tests::{Scratch, Server, require, require_root};
use std::fs::{self, File};
use std::io::{Result, Write};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_mins(1);

/// Serves a disk of `bytes` bytes on `device`.
fn serve(scratch: &Scratch, name: &str, device: &str, bytes: u64) -> Server {
    let export = format!("nbd+unix:///?socket={}", scratch.file(&format!("{name}.sock")));
    let (table, control) = (format!("0 {} linear {device} 0", bytes / 512), scratch.file(&format!("{name}.control")));
    Server::start(&scratch.file(name), 1, &["--table", &table, "--export", &export, "--control", &control])
}

/// The FUSE export of QEMU 7.2 keeps its requests in one buffer: as soon as two are under way, one is written in the place
/// of the other. It is served by us to the check that `fio` and others use.
#[test]
fn the_check_of_data_fails_on_a_device_that_mixes_requests_up() {
    require(&["qemu-storage-daemon", "fio"]);
    let scratch = Scratch::new();
    let image = scratch.sparse("image", 16 * MIB);
    let fused = scratch.write("fused", b"");
    let node = format!("driver=file,node-name=disk,filename={image}");
    let export = format!("type=fuse,id=fuse,node-name=disk,mountpoint={fused},writable=on,growable=off");
    let qemu = Peer::spawn(&["qemu-storage-daemon", "--blockdev", &node, "--export", &export]);
    let ready = || fs::metadata(&fused).is_ok_and(|file| file.len() == 16 * MIB);
    run::wait_for("QEMU's export", LIMIT, || ready().then_some(()));
    let server = serve(&scratch, "server", &fused, 16 * MIB);
    let check = |depth: u32, round: u32| {
        let job = format!("--rw=randwrite --bs=4k --size=4m --verify_backlog=64 --iodepth={depth} --randseed={round}");
        fio::check(server.uri(), scratch.path(), &job)
    };
    let alone = check(1, 0);
    assert_eq!(alone.code, 0, "one request at a time is not mixed up: {}{}", alone.stdout, alone.stderr);
    let seen = |ended: Ended| ended.code != 0 && format!("{}{}", ended.stdout, ended.stderr).contains("verify: bad");
    // Nearly always in the first round.
    assert!((1..=10).any(|round| seen(check(16, round))), "ten rounds of mixed requests were not seen");
    server.stop();
    drop(qemu);
    run::outcome(30, &["fusermount3", "-u", &fused]);
}

/// What the tests have requests made with, by name; what each does, and must fail for when that fails, and only then; and to
/// what it is blind: fio 3.33 and qemu-img 7.2 pass over flushes that failed. Whether what they flushed is durable must be
/// seen otherwise.
const CLIENTS: [(&str, &str, &str); 9] = [
    ("fio", "write read", "flush"),
    ("nbdcopy there", "write", ""),
    ("nbdcopy there and flush", "write flush", ""),
    ("nbdcopy back", "read", ""),
    ("forebay copy there", "write flush", ""),
    ("forebay copy back", "read", ""),
    ("qemu-img there", "write", "flush"),
    ("our client", "write flush read", ""),
    ("our device", "write flush read", ""),
];

/// Lets a client write, flush and read what it does, and says whether it is content.
fn is_content(name: &str, scratch: &Scratch, uri: &str) -> bool {
    let (image, back) = (scratch.file("image"), scratch.file("back"));
    let run = |words: &[&str]| run::outcome(60, words).code == 0;
    match name {
        "fio" => fio::check(uri, scratch.path(), "--rw=randwrite --bs=4k --iodepth=4 --size=4m --fsync=64").code == 0,
        "nbdcopy there" => run(&["nbdcopy", &image, uri]),
        "nbdcopy there and flush" => run(&["nbdcopy", "--flush", &image, uri]),
        "nbdcopy back" => run(&["nbdcopy", uri, &back]),
        "forebay copy there" => run(&[binary(), "copy", "--flush", &image, uri]),
        "forebay copy back" => run(&[binary(), "copy", uri, &back]),
        "qemu-img there" => run(&["qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", &image, uri]),
        "our client" => writes_and_reads(uri).is_ok(),
        _ => {
            let near = serve(scratch, "near", uri, 4 * MIB);
            let content = writes_and_reads(near.uri()).is_ok();
            near.kill();
            content
        }
    }
}

/// A thousand writes, with a flush now and then, and their reads.
fn writes_and_reads(uri: &str) -> Result<()> {
    let mut client = Client::connect(uri)?;
    for at in 0..1000 {
        client.write(at * 4096, &[7; 4096], if at % 64 == 63 { FUA } else { 0 })?;
        if at % 128 == 127 {
            client.flush()?;
        }
    }
    (0..1000).try_for_each(|at| client.read(at * 4096, 4096).map(drop))
}

#[test]
fn every_client_of_the_tests_tells_of_reads_writes_and_flushes_that_fail() {
    require(&["nbdkit", "fio", "nbdcopy", "qemu-img"]);
    let scratch = Scratch::new();
    let mut bytes = vec![0; 4 << 20];
    fastrand::Rng::with_seed(3).fill(&mut bytes);
    let (image, disk, socket) = (scratch.write("image", &bytes), scratch.file("disk"), scratch.file("s"));
    let uri = format!("nbd+unix:///?socket={socket}");
    // A file as a disk, by scripts, with a flush that fails.
    let get_size = "get_size=echo 4M";
    let pread = format!("pread=dd if={disk} skip=$4 count=$3 iflag=count_bytes,skip_bytes");
    let pwrite = format!("pwrite=dd of={disk} seek=$4 conv=notrunc oflag=seek_bytes");
    let yes = ["can_write=exit 0", "can_flush=exit 0", "can_fua=echo emulate"];
    let flush = "flush=echo 'EIO the disk is gone' >&2; exit 1";
    let no_flush = [&["eval", get_size, &pread, &pwrite, flush][..], &yes].concat();
    let file = format!("file={disk}");
    // One piece of 4 KiB in twenty fails, and everybody has a thousand of them.
    let pieces = ["--filter=blocksize", "--filter=error", "file", &file, "maxlen=4k", "error-rate=0"];
    for (fault, words) in [
        ("nothing", vec!["file", file.as_str()]),
        ("write", [&pieces[..], &["error-pwrite=EIO", "error-pwrite-rate=5%"]].concat()),
        ("read", [&pieces[..], &["error-pread=EIO", "error-pread-rate=5%"]].concat()),
        ("flush", no_flush),
    ] {
        for (name, does, _) in CLIENTS.into_iter().filter(|(.., blind)| *blind != fault) {
            fs::copy(&image, &disk).expect("a scratch folder is writable");
            let kit = Peer::serve(&[&["nbdkit", "-f", "-U", &socket], &words[..]].concat(), &socket);
            let content = is_content(name, &scratch, &uri);
            let concerned = does.split(' ').any(|used| used == fault);
            assert_eq!(content, !concerned, "{name}, where each {fault} may fail");
            kit.kill();
        }
    }
}

/// Writes a file so many times, each time with an fsync, and says how many flushes our server has counted meanwhile.
fn flushes_of(fsyncs: u8, path: &str, scratch: &Scratch) -> u64 {
    let control = scratch.file("server.control");
    let before = flushes(&control, 0);
    let mut file = File::options().write(true).create(true).truncate(false).open(path).expect("it is mounted");
    for byte in 0..fsyncs {
        file.write_all(&[byte; 5000]).and_then(|()| file.sync_all()).expect("there is room");
    }
    flushes(&control, 0) - before
}

#[test]
fn an_fsync_of_each_file_system_is_a_flush_of_our_server() {
    require(&["mkfs.ext4", "mkfs.xfs"]);
    require_root();
    let scratch = Scratch::new();
    let (image, mount) = (scratch.sparse("image", 320 * MIB), scratch.file("mount"));
    fs::create_dir(&mount).expect("a scratch folder is writable");
    let server = serve(&scratch, "server", &image, 320 * MIB);
    let attached = Attached::new(&scratch, "fuse", server.uri());
    let mounted = |options: &str, fsyncs| {
        run::ok(30, &["mount", "-o", options, attached.device(), &mount]);
        let counted = flushes_of(fsyncs, &format!("{mount}/file"), &scratch);
        unmount(&mount);
        counted
    };
    let raw = flushes_of(50, attached.device(), &scratch);
    assert!(raw >= 50, "{raw} flushes for 50 fsyncs of the block device");
    run::ok(60, &["mkfs.xfs", "-q", "-f", attached.device()]);
    let xfs = mounted("nouuid", 50);
    assert!(xfs >= 50, "{xfs} flushes for 50 fsyncs of xfs");
    run::ok(60, &["mkfs.ext4", "-q", "-F", attached.device()]);
    let ext4 = mounted("errors=remount-ro", 50);
    assert!(ext4 >= 50, "{ext4} flushes for 50 fsyncs of ext4");
    // A harness whose flushes are lost on the way is found by the same count.
    let lost = mounted("nobarrier", 250);
    assert!(lost < 250, "{lost} flushes for 250 fsyncs of ext4 that were to send none");
    attached.detach();
    server.stop();
}
