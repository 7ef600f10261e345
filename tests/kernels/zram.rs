//! The kernel's zram and ours, told the same: the same writes, discards and attributes, in Linux 6.12 and through NBD
//! and the control socket. What they answer must be the same, and the memory that ours uses at most the kernel's.
//!
//! ```text
//!   acts ─┬─▶ a script for the guest ─▶ one line an answer ─┐
//!         └─▶ server, client, control socket ─▶ answers ────┴─▶ compared, act by act
//! ```
#![forbid(unsafe_code)]

use forebay_tests::nbd::{Client, command};
use forebay_tests::server::forebay;
use forebay_tests::{Scratch, Server, require, run};
use std::fmt::Write as _;

use Act::{Discard, Get, Hash, Memory, Set, Write};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
/// A backing device with room for everything.
const ROOMY: Option<(char, u64)> = Some(('a', 64 * MIB));

/// Something done to a disk, and how its answers are compared.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Write a file of the scratch folder from a page on, page by page until one fails: pages written.
    Write(&'static str, u64),
    /// Discard so many pages from a page on.
    Discard(u64, u64),
    /// Write an attribute: nothing, or the error.
    Set(&'static str, &'static str),
    /// Read an attribute, which must be the same, word by word.
    Get(&'static str),
    /// Read `mm_stat`: all must be the same but the bytes of objects, which depend on the codec's makers; memory in use
    /// and its maximum are at most the kernel's.
    Memory,
    /// A hash of the disk's first pages.
    Hash(u64),
}

/// A disk and what is done to it.
struct Scene {
    name: &'static str,
    disk_bytes: u64,
    /// The backing device, by its place among the guest's, and its size.
    backing: Option<(char, u64)>,
    acts: Vec<Act>,
}

fn scenes() -> Vec<Scene> {
    vec![limit(), pages(), memory(), away(), full(), ext4()]
}

fn scene(name: &'static str, backing: Option<(char, u64)>, acts: &[Act]) -> Scene {
    let disk_bytes = if name == "limit" { 4096 * MIB } else { 64 * MIB };
    Scene { name, disk_bytes, backing, acts: acts.to_vec() }
}

/// Ten MiB written to 4 GiB, and a limit of 1002 pages: `1002 0 1002`.
fn limit() -> Scene {
    scene(
        "limit",
        ROOMY,
        &[
            Set("writeback_limit_enable", "1"),
            Set("writeback_limit", "1002"),
            Write("noise", 0),
            Get("mm_stat"),
            Set("idle", "all"),
            Set("writeback", "idle"),
            Get("bd_stat"),
            Get("mm_stat"),
            Get("writeback_limit"),
            Set("writeback", "idle"),
            Get("bd_stat"),
            Hash(2560),
            Get("bd_stat"),
            Set("writeback_limit_enable", "0"),
        ],
    )
}

/// What pages count as, and what is refused.
fn pages() -> Scene {
    scene(
        "pages",
        None,
        &[
            Get("mm_stat"),
            Get("io_stat"),
            Get("initstate"),
            Get("disksize"),
            Hash(64),
            Set("disksize", "0"),
            Set("disksize", "1G"),
            Set("comp_algorithm", "zstd"),
            Set("backing_dev", "/dev/vda"),
            Set("writeback", "idle"),
            Set("writeback", "sideways"),
            Set("idle", "sometimes"),
            Write("zeroes", 0),
            Get("mm_stat"),
            Write("words", 200),
            Get("mm_stat"),
            Write("noise", 300),
            Get("mm_stat"),
            Write("zeroes", 310),
            Get("mm_stat"),
            Discard(297, 7),
            Get("io_stat"),
            Get("mm_stat"),
            Write("nearly", 400),
            Memory,
            Set("mem_used_max", "1"),
            Set("mem_used_max", "0"),
            Set("compact", "1"),
            Hash(4096),
        ],
    )
}

/// A memory limit, and memory in use for data of several kinds.
fn memory() -> Scene {
    scene(
        "memory",
        None,
        &[
            Set("mem_limit", "1M"),
            Write("noise", 0),
            Write("zeroes", 1000),
            Memory,
            Get("io_stat"),
            Set("mem_limit", "0"),
            Write("mixed", 0),
            Memory,
            Write("text", 6000),
            Memory,
            Hash(8000),
        ],
    )
}

/// Pages that leave memory, are read, written and discarded.
fn away() -> Scene {
    scene(
        "away",
        ROOMY,
        &[
            Write("noise", 0),
            Write("zeroes", 2560),
            Set("writeback", "idle"),
            Get("bd_stat"),
            Set("idle", "all"),
            Set("writeback", "idle"),
            Get("bd_stat"),
            Get("mm_stat"),
            Hash(2700),
            Get("bd_stat"),
            Write("zeroes", 100),
            Write("nearly", 300),
            Get("bd_stat"),
            Set("writeback", "page_index=300"),
            Get("bd_stat"),
            Discard(0, 50),
            Get("bd_stat"),
            Get("io_stat"),
            Set("writeback", "huge"),
            Set("writeback", "huge_idle"),
            Get("bd_stat"),
            Memory,
            Hash(2700),
        ],
    )
}

/// More pages than the backing device has blocks.
fn full() -> Scene {
    scene(
        "full",
        Some(('b', 100 * PAGE)),
        &[
            Write("noise", 0),
            Set("idle", "all"),
            Set("writeback", "idle"),
            Get("bd_stat"),
            Get("mm_stat"),
            Hash(2560),
            Get("bd_stat"),
        ],
    )
}

/// A file system with a file in it.
fn ext4() -> Scene {
    scene(
        "ext4",
        ROOMY,
        &[Write("ext4", 0), Set("idle", "all"), Set("writeback", "idle"), Get("bd_stat"), Memory, Hash(6144), Get("bd_stat")],
    )
}

/// The files that are written, in the scratch folder.
fn prepare(scratch: &Scratch) {
    let mut rng = fastrand::Rng::with_seed(77);
    let pages = |count: usize, page: &mut dyn FnMut(usize, &mut [u8])| {
        let mut bytes = vec![0; count * 4096];
        bytes.chunks_mut(4096).enumerate().for_each(|(at, bytes)| page(at, bytes));
        bytes
    };
    let word = 0x0123_4567_89ab_cdef_u64.to_le_bytes();
    let words = |bytes: &mut [u8]| bytes.chunks_mut(8).for_each(|place| place.copy_from_slice(&word));
    scratch.write("zeroes", &vec![0; 100 * 4096]);
    scratch.write("noise", &pages(2560, &mut |_, bytes| bytes.fill_with(|| rng.u8(..))));
    scratch.write("words", &pages(10, &mut |_, bytes| words(bytes)));
    let nearly = pages(10, &mut |at, bytes| {
        words(bytes);
        bytes[at * 400] ^= 1;
    });
    scratch.write("nearly", &nearly);
    // 60 % of each page compresses; one in eight does not at all, one in eight repeats a word.
    let mixed = pages(4096, &mut |at, bytes| {
        let noise = [4096, 0, 1638, 1638, 1638, 1638, 1638, 1638][at % 8];
        bytes[..noise].fill_with(|| rng.u8(..));
    });
    scratch.write("mixed", &mixed);
    let mut text = Vec::new();
    for name in ["ARCHITECTURE.md", "docs/format.md", "docs/zram.md", "crates/cli/src/flags.rs", "Cargo.lock"] {
        let path = format!("{}/../{name}", env!("CARGO_MANIFEST_DIR"));
        text.extend(std::fs::read(path).expect("the repository is there"));
    }
    text.resize(text.len().next_multiple_of(4096), b'\n');
    scratch.write("text", &text);
    let folder = scratch.file("content");
    std::fs::create_dir(&folder).expect("a scratch folder is writable");
    let tarball = format!("{folder}/sources.tar");
    run::ok(60, &["tar", "-cf", &tarball, "-C", concat!(env!("CARGO_MANIFEST_DIR"), "/.."), "crates", "docs"]);
    run::ok(60, &["mkfs.ext4", "-q", "-b", "4096", "-d", &folder, &scratch.file("ext4"), "24M"]);
}

/// What the guest does, each answer on a line `@SCENE NUMBER ANSWER`.
fn script(scenes: &[Scene], tarball_hash: &str) -> String {
    let mut text = String::from("Z=/sys/block/zram0\n");
    let setup = |text: &mut String, scene: &Scene| {
        let backing = scene.backing.map_or(String::new(), |(letter, _)| format!("echo /dev/vd{letter} >$Z/backing_dev; "));
        let _ = writeln!(text, "echo lz4 >$Z/comp_algorithm; {backing}echo {} >$Z/disksize", scene.disk_bytes);
    };
    for scene in scenes {
        setup(&mut text, scene);
        for (number, act) in scene.acts.iter().enumerate() {
            let answer = match act {
                Act::Write(file, page) => format!(
                    "dd if=/files/{file} of=/dev/zram0 bs=4096 seek={page} oflag=direct conv=notrunc 2>&1 | sed -n 's/+0 records out//p'"
                ),
                Act::Discard(page, count) => format!("blkdiscard -o {} -l {} /dev/zram0", page * PAGE, count * PAGE),
                Act::Set(name, value) => format!("{{ echo {value} >$Z/{name}; }} 2>&1 | sed 's/.*: //'"),
                Act::Get(name) => format!("cat $Z/{name}"),
                Act::Memory => "cat $Z/mm_stat".to_owned(),
                Act::Hash(pages) => {
                    format!("dd if=/dev/zram0 bs=64k count={} iflag=direct status=none | md5sum", pages * PAGE / 65_536)
                }
            };
            let _ = writeln!(text, "echo \"@{} {number} $({answer})\"", scene.name);
        }
        text += "echo 1 >$Z/reset\n";
    }
    // The end-to-end test: a tarball through ext4, written back, and read again.
    let last = scenes.last().expect("there are scenes");
    setup(&mut text, last);
    text += "dd if=/files/ext4 of=/dev/zram0 bs=1M oflag=direct conv=notrunc status=none\n";
    text += "mount -t ext4 /dev/zram0 /mnt && cp /mnt/sources.tar /mnt/there && umount /mnt || exit 1\n";
    text += "echo all >$Z/idle; echo idle >$Z/writeback; cat $Z/mm_stat | sed 's/^/@left /'\n";
    text += "mount -t ext4 -o ro /dev/zram0 /mnt || exit 1\n";
    let _ = writeln!(text, "echo '{tarball_hash}  /mnt/there' | sha256sum -c | sed 's/^/@tarball /'; umount /mnt");
    text + "cat $Z/bd_stat | sed 's/^/@blocks /'; echo 1 >$Z/reset\n"
}

/// Words with one space between.
fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What the kernel says of an error, by its name.
fn errno(text: &str) -> String {
    let names = [
        ("Invalid argument", "EINVAL"),
        ("Device or resource busy", "EBUSY"),
        ("Resource busy", "EBUSY"),
        ("Input/output error", "EIO"),
        ("No space left on device", "ENOSPC"),
        ("No such device", "ENODEV"),
    ];
    names.iter().find(|(message, _)| text == *message).map_or_else(|| text.to_owned(), |(_, name)| (*name).to_owned())
}

/// Our disk, and what it answers.
struct Ours<'a> {
    scratch: &'a Scratch,
    client: Client,
    _server: Server,
}

impl<'a> Ours<'a> {
    fn new(scratch: &'a Scratch, scene: &Scene) -> Self {
        let backing =
            scene.backing.map(|(_, bytes)| format!("backing_dev={}", scratch.sparse(&format!("{}.backing", scene.name), bytes)));
        let table = format!("0 {} zram {}", scene.disk_bytes / 512, backing.unwrap_or_default());
        let export = format!("nbd+unix:///?socket={}", scratch.file("nbd.sock"));
        let control = scratch.file("control.sock");
        let log = scratch.file(&format!("{}.server", scene.name));
        let server = Server::start(&log, 1, &["--table", &table, "--export", &export, "--control", &control]);
        let client = Client::connect(server.uri()).expect("the server takes a client");
        Self { scratch, client, _server: server }
    }

    fn attribute(&self, words: &[&str]) -> run::Ended {
        let control = self.scratch.file("control.sock");
        forebay(&[&["zram"], words, &["--control", &control]].concat())
    }

    fn get(&self, name: &str) -> String {
        plain(&self.attribute(&["get", "disk", name]).stdout)
    }

    fn answer(&mut self, act: Act) -> String {
        match act {
            Act::Write(file, page) => {
                let bytes = std::fs::read(self.scratch.file(file)).expect("it was prepared");
                let mut writes = (page..).zip(bytes.chunks(4096));
                let client = &mut self.client;
                let failed = writes.position(|(page, bytes)| client.write(page * PAGE, bytes, 0).is_err());
                failed.unwrap_or(bytes.len() / 4096).to_string()
            }
            Act::Discard(page, count) => {
                let length = u32::try_from(count * PAGE).expect("few pages");
                self.client
                    .simple(command::TRIM, 0, page * PAGE, length)
                    .map_or_else(|error| error.to_string(), |()| String::new())
            }
            Act::Set(name, value) => {
                let ended = self.attribute(&["set", "disk", name, value]);
                let errno = ended.stderr.trim_end().trim_end_matches(')').rsplit('(').next().unwrap_or_default();
                if ended.code == 0 { String::new() } else { errno.to_owned() }
            }
            Act::Get(name) => self.get(name),
            Act::Memory => self.get("mm_stat"),
            Act::Hash(pages) => {
                let mut bytes = Vec::new();
                for page in (0..pages / 16 * 16).step_by(16) {
                    bytes.extend(self.client.read(page * PAGE, 16 * 4096).expect("a read"));
                }
                let path = self.scratch.write("read", &bytes);
                run::ok(60, &["md5sum", &path]).chars().take(32).collect::<String>() + " -"
            }
        }
    }
}

/// Whether the two `mm_stat` agree as far as they must.
fn is_no_more(ours: &str, kernels: &str) -> bool {
    let numbers = |text: &str| -> Vec<u64> { text.split(' ').map(|word| word.parse().expect("a number")).collect() };
    let (ours, kernels) = (numbers(ours), numbers(kernels));
    let same = [0, 3, 5, 6, 7, 8].iter().all(|&column| ours[column] == kernels[column]);
    same && [2, 4].iter().all(|&column| ours[column] <= kernels[column])
}

#[test]
fn the_kernels_zram_and_ours_answer_the_same_and_ours_needs_no_more_memory() {
    require(&["qemu-system-x86_64", "/bin/busybox", "cpio", "modprobe", "xz", "mkfs.ext4", "tar", "md5sum"]);
    let scratch = Scratch::in_memory();
    prepare(&scratch);
    let scenes = scenes();
    let hash = run::sha256(scratch.path().join("content/sources.tar").as_ref());
    let script = scratch.write("script.sh", script(&scenes, &hash).as_bytes());
    let mut words = vec![concat!(env!("CARGO_MANIFEST_DIR"), "/lab/vm.sh").to_owned()];
    words.extend(["-k", "zram", "-k", "ext4"].map(str::to_owned));
    for file in ["zeroes", "noise", "words", "nearly", "mixed", "text", "ext4"] {
        words.extend(["-f".to_owned(), scratch.file(file)]);
    }
    for (name, bytes) in [("vda", 64 * MIB), ("vdb", 100 * PAGE)] {
        words.extend(["-d".to_owned(), scratch.sparse(name, bytes)]);
    }
    words.push(script);
    let output = run::ok(240, &words);
    let said = |start: &str| {
        let line = output.lines().find_map(|line| line.strip_prefix(start));
        plain(line.unwrap_or_else(|| panic!("the guest does not say {start}\n{output}")))
    };
    let mut differences = Vec::new();
    for scene in &scenes {
        let mut disk = Ours::new(&scratch, scene);
        for (number, &act) in scene.acts.iter().enumerate() {
            let ours = disk.answer(act);
            let kernels = errno(&said(&format!("@{} {number} ", scene.name)));
            let agree = if matches!(act, Act::Memory) { is_no_more(&ours, &kernels) } else { ours == kernels };
            if !agree {
                differences.push(format!("{}, act {number}, {act:?}: ours {ours:?}, the kernel's {kernels:?}", scene.name));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert_eq!(said("@limit 6 "), "1002 0 1002");
    assert_eq!(said("@tarball "), "/mnt/there: OK");
    let (memory, blocks) = (said("@left "), said("@blocks "));
    assert_eq!(memory.split(' ').nth(2), Some("0"), "everything was away: {memory}");
    assert!(blocks.split(' ').nth(1).is_some_and(|reads| reads != "0"), "the tarball was read from blocks: {blocks}");
}
