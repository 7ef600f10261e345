//! What ends of a copy are and how they are opened: locks, devices in use, one end by two names, block devices,
//! file systems that share blocks, streams into something larger.

use forebay_tests::foreign::Loop;
use forebay_tests::run::{self, Ended};
use forebay_tests::server::binary;
use forebay_tests::{Scratch, require, require_root};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::{copied, copy, data, refused, same, with_server};

const MIB: u64 = 1 << 20;

/// A file system of its own in a file.
struct Mount(String);

impl Mount {
    fn new(scratch: &Scratch, make: &str, bytes: u64) -> Self {
        require_root();
        let (image, folder) = (scratch.sparse("image", bytes), scratch.file("mount"));
        run::shell(60, &format!("{make} {image}; mkdir {folder}; mount -o loop {image} {folder}"));
        Self(folder)
    }

    fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.0)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        run::happens_within(Duration::from_secs(20), || run::outcome(20, &["umount", &self.0]).code == 0);
    }
}

/// Copies what `script` prints to the words given.
fn piped(script: &str, words: &[&str]) -> Ended {
    run::outcome(60, &["bash", "-c", &format!("set -o pipefail; {script} | {} copy - {}", binary(), words.join(" "))])
}

fn blocks(path: &str) -> u64 {
    fs::metadata(path).expect("the file is there").blocks() * 512
}

#[test]
fn what_another_process_has_locked_is_left_alone_however_small_and_from_pipes_too() {
    let scratch = Scratch::new();
    let (small, large) = (scratch.write("small", &data(100)), scratch.write("large", &data(1 << 20)));
    let (busy, empty) = (scratch.write("busy", &vec![7; 2 << 20]), scratch.write("empty", b""));
    let locks = [&busy, &empty].map(|path| File::options().read(true).write(true).open(path).unwrap());
    for file in &locks {
        file.lock().unwrap();
    }
    for to in [&busy, &empty] {
        for source in [&small, &large] {
            refused(&[source, to], 1, "in use");
        }
        let ended = piped(&format!("cat {small}"), &[to]);
        assert!(ended.code == 1 && ended.stderr.contains("in use"), "{}", ended.stderr);
    }
    refused(&[&busy, &scratch.file("new")], 1, "in use");
    let tiny = File::open(&small).unwrap();
    tiny.lock().unwrap();
    refused(&[&small, &scratch.file("new")], 1, "in use");
    assert_eq!(fs::read(&busy).unwrap(), vec![7; 2 << 20]);
    assert!(fs::read(&empty).unwrap().is_empty() && !Path::new(&scratch.file("new")).exists());
}

#[test]
fn a_block_device_in_use_is_not_written() {
    let scratch = Scratch::new();
    let (small, large) = (scratch.write("small", b"hello"), scratch.write("large", &data(1 << 20)));
    let mount = Mount::new(&scratch, "mkfs.ext4 -q", 8 * MIB);
    let device = run::shell(20, &format!("findmnt -n -o SOURCE {}", mount.0)).trim().to_owned();
    refused(&[&small, &device], 1, "in use");
    refused(&[&large, &device], 1, "in use");
    let ended = piped(&format!("cat {small}"), &[&device]);
    assert!(ended.code == 1 && ended.stderr.contains("in use"), "{}", ended.stderr);
}

#[test]
fn a_copy_onto_itself_is_refused_by_whatever_names() {
    require(&["nbdkit"]);
    let scratch = Scratch::new();
    let (source, forebay) = (scratch.write("source", &data(1 << 20)), binary());
    let before = fs::read(&source).unwrap();
    let into_itself = run::outcome(20, &["sh", "-c", &format!("{forebay} copy - {source} < {source}")]);
    assert!(into_itself.code == 1 && into_itself.stderr.contains("same file"), "{}", into_itself.stderr);
    let behind_itself = run::outcome(20, &["sh", "-c", &format!("{forebay} copy {source} - >> {source}")]);
    assert!(behind_itself.code == 1 && behind_itself.stderr.contains("same file"), "{}", behind_itself.stderr);
    assert_eq!(fs::read(&source).unwrap(), before);
    let folder = scratch.path().file_name().unwrap().to_str().unwrap();
    refused(&[&source, &scratch.file("new"), &scratch.file(&format!("../{folder}/new"))], 1, "given twice");
    let ended = piped(&format!("cat {source}"), &[&scratch.file("new"), &scratch.file("./new")]);
    assert!(ended.code == 1 && ended.stderr.contains("given twice"), "{}", ended.stderr);
    assert!(!Path::new(&scratch.file("new")).exists());
    let itself = with_server(&["memory", "1M"], &format!("{forebay} copy \"$uri\" \"$uri\""));
    assert!(itself.code == 1 && itself.stderr.contains("same device"), "{}", itself.stderr);
    let twice = with_server(&["memory", "1M"], &format!("{forebay} copy {source} \"$uri\" \"$uri\""));
    assert!(twice.code == 1 && twice.stderr.contains("given twice"), "{}", twice.stderr);
}

#[test]
fn a_destination_that_cannot_be_opened_leaves_nothing_made() {
    require(&["nbdkit"]);
    let scratch = Scratch::new();
    let source = scratch.write("source", &data(2 << 20));
    let (new, empty, busy) = (scratch.file("new"), scratch.write("empty", b""), scratch.write("busy", &vec![1; 2 << 20]));
    refused(&[&source, &new, &empty, "ram:1M"], 1, "less than the source");
    let lock = File::open(&busy).unwrap();
    lock.lock().unwrap();
    refused(&[&source, &new, &empty, &busy], 1, "in use");
    // Of two that are to be made, the second cannot.
    refused(&[&source, &new, &empty, &scratch.file("no/folder/file")], 1, "no/folder/file");
    let server = with_server(&["--filter=readonly", "memory", "2M"], &format!("{} copy {source} {new} \"$uri\"", binary()));
    assert_eq!(server.code, 1, "{}", server.stderr);
    assert!(!Path::new(&new).exists() && fs::read(&empty).unwrap().is_empty());
}

#[test]
fn a_stream_keeps_what_lies_behind_its_last_byte() {
    require(&["nbdkit", "nbdcopy"]);
    let scratch = Scratch::new();
    let (old, back) = (vec![0xAA; 1 << 20], scratch.file("back"));
    let (file, head) = (scratch.write("file", &old), scratch.write("head", &data(70_001)));
    let device = scratch.write("device", &old);
    let device_of = Loop::new(&device, &["--sector-size", "4096"]);
    let server = format!("nbdcopy {file} \"$uri\"; cat {head} | {} copy - \"$uri\" {file} {}", binary(), device_of.path());
    let ended = with_server(&["memory", "1M"], &format!("set -e; {server}; nbdcopy \"$uri\" {back}"));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    drop(device_of);
    let mut expected = old;
    expected[..70_001].copy_from_slice(&data(70_001));
    for path in [&file, &back, &device] {
        assert!(fs::read(path).unwrap() == expected, "{path}");
    }
}

#[test]
fn streams_keep_to_a_rate_and_show_how_far_they_are() {
    let begun = run::now();
    let ended = piped("head -c 3M /dev/zero", &["null:", "--rate", "2M", "--progress"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(begun.elapsed() >= Duration::from_millis(1400), "{:?}", begun.elapsed());
    assert!(ended.stderr.contains("3 MiB, "), "{}", ended.stderr);
}

#[test]
fn block_devices_are_ends_as_files_are() {
    let scratch = Scratch::new();
    let bytes = data((4 << 20) + 1000);
    let source = scratch.write("source", &bytes);
    let old = vec![0xAA; 5 << 20];
    let (fine, coarse) = (scratch.write("fine", &old), scratch.write("coarse", &old));
    let devices = [Loop::new(&fine, &["--sector-size", "512"]), Loop::new(&coarse, &["--sector-size", "4096"])];
    let [one, other] = [devices[0].path(), devices[1].path()];
    copied(&[&source, one, other, "--verify"]);
    refused(&[&source, one, one], 1, "given twice");
    refused(&[one, one], 1, "same file");
    let (back, larger) = (scratch.file("back"), scratch.write("larger", &data(6 << 20)));
    copied(&[one, &back, "--verify"]);
    refused(&[&larger, &back], 1, "less than the source");
    refused(&[&larger, one], 1, "less than the source");
    assert_eq!(run::outcome(60, &[binary(), "compare", one, other]).code, 0);
    // From one device to the other, and back from there.
    copied(&[&larger, &scratch.file("whole")]);
    copied(&[one, other, "--engine", "threads", "--verify"]);
    drop(devices);
    let mut expected = old;
    expected[..bytes.len()].copy_from_slice(&bytes);
    for path in [&fine, &coarse, &back] {
        assert!(fs::read(path).unwrap() == expected, "{path}: what lies behind stays");
    }
}

#[test]
fn holes_of_fine_blocks_arrive_at_ends_with_coarse_ones() {
    require(&["nbdkit", "qemu-img"]);
    let scratch = Scratch::new();
    let bytes: Vec<u8> = data(1 << 20);
    let mut expected = bytes.clone();
    // Of every 7 sectors 3 are a hole, which no block of 4096 bytes knows.
    for sector in (0..2048_usize).filter(|sector| sector % 7 < 3) {
        expected[sector * 512..(sector + 1) * 512].fill(0);
    }
    let (source, forebay) = (scratch.write("source", &expected), binary());
    let (coarse, plain) = (scratch.write("coarse", &vec![0xAA; 1 << 20]), scratch.write("plain", &expected));
    let device = Loop::new(&coarse, &["--sector-size", "4096"]);
    let extents = "s=0; while [ $s -lt 2048 ]; do echo $((s * 512)) 1536 hole,zero; \
                   echo $((s * 512 + 1536)) 2048 ; s=$((s + 7)); done";
    let words = [
        "eval".to_owned(),
        "get_size=echo 1048576".to_owned(),
        format!("pread=dd if={source} bs=512 skip=$(($4 / 512)) count=$(($3 / 512)) status=none"),
        "can_extents=exit 0".to_owned(),
        format!("extents={extents}"),
    ];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let script = format!("set -e; {forebay} copy \"$uri\" {0} --verify; {forebay} compare \"$uri\" {0}", device.path());
    let ended = with_server(&words, &script);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    drop(device);
    assert!(same(&coarse, &plain));
}

#[test]
fn blocks_are_shared_only_where_that_is_asked_for() {
    require(&["mkfs.xfs"]);
    let scratch = Scratch::new();
    let mount = Mount::new(&scratch, "mkfs.xfs -q", 320 * MIB);
    let (source, own, shared) = (mount.file("source"), mount.file("own"), mount.file("shared"));
    fs::write(&source, data(32 << 20)).unwrap();
    let free = || {
        let text = run::shell(20, &format!("sync -f {}; stat -f -c '%f %S' {0}", mount.0));
        text.split_whitespace().map(|number| number.parse::<u64>().unwrap()).product::<u64>()
    };
    let before = free();
    copied(&[&source, &own]);
    let between = free();
    copied(&[&source, &shared, "--offload"]);
    let after = free();
    assert!(same(&source, &own) && same(&source, &shared));
    assert!(before.saturating_sub(between) >= 30 * MIB, "{before} {between}");
    assert!(between.saturating_sub(after) < 4 * MIB, "{between} {after}");
    refused(&[&source, &mount.file("more"), "--offload", "--allocated"], 2, "");
}

#[test]
fn allocated_destinations_have_no_holes_whatever_the_file_system_and_the_words() {
    require(&["mkfs.ext3"]);
    let scratch = Scratch::new();
    let source = scratch.sparse("source", 4 * MIB);
    File::options().write(true).open(&source).unwrap().write_all_at(&data(4096), MIB).unwrap();
    // Where space cannot be reserved.
    let mount = Mount::new(&scratch, "mkfs.ext3 -q", 32 * MIB);
    let told = scratch.sparse("told", 4 * MIB);
    for (to, more) in [(mount.file("new"), &[][..]), (told, &["--destination-is-zero"]), (scratch.file("new"), &[])] {
        copied(&[&[source.as_str(), &to, "--allocated"], more].concat());
        assert!(same(&source, &to) && blocks(&to) >= 4 * MIB, "{to}: {}", blocks(&to));
    }
    let ended = piped(&format!("cat {source}"), &[&scratch.file("streamed"), "--allocated"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(blocks(&scratch.file("streamed")) >= 4 * MIB);
    assert_eq!(copy(&[&source, "null:", "--allocated"]).code, 0);
}

#[test]
fn a_copy_that_keeps_going_brings_its_last_bytes_wherever_there_is_room() {
    let scratch = Scratch::new();
    let source = scratch.write("source", &data((6 << 20) + 77));
    let mount = Mount::new(&scratch, "mkfs.ext4 -q", 4 * MIB);
    let (small, large) = (mount.file("to"), scratch.file("to"));
    let ended = copy(&[&source, &small, &large, "--keep-going", "--request-size", "64K"]);
    assert!(ended.code == 1 && ended.stderr.contains("no space left"), "{}", ended.stderr);
    assert!(same(&source, &large), "the others get everything");
    // Where it ends with the first error, nothing claims to be whole.
    let ended = copy(&[&source, &small, &large, "--request-size", "64K"]);
    assert!(ended.code == 1 && ended.stderr.contains("the copy ends here"), "{}", ended.stderr);
}

/// Copies while `path` is locked, changes its size to `bytes` once the copy has opened it, and lets go of it. A machine that
/// is so slow that the copy gives up gets another chance.
fn resized_meanwhile(words: &[&str], path: &str, before: u64, bytes: u64) -> Ended {
    for _ in 0..8 {
        let file = File::options().read(true).write(true).open(path).expect("the file is there");
        file.set_len(before).and_then(|()| file.lock()).expect("nobody else has it");
        let mut copy = Command::new(binary());
        copy.arg("copy").args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut copy = copy.spawn().expect("it was built");
        run::wait_for("the copy to open the file", Duration::from_mins(1), || {
            let over = copy.try_wait().expect("a child can be waited for").is_some();
            (over || has_open(copy.id(), path)).then_some(())
        });
        run::pause(Duration::from_millis(50)); // and to wait for the lock
        file.set_len(bytes).and_then(|()| file.unlock()).expect("it is open");
        let ended = Ended::from(copy.wait_with_output().expect("it ends"));
        if !ended.stderr.contains("in use") {
            return ended;
        }
    }
    panic!("{path} was always said to be in use");
}

/// Whether a process has a file open.
fn has_open(process: u32, path: &str) -> bool {
    let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    files.filter_map(|file| fs::read_link(file.path()).ok()).any(|target| target == Path::new(path))
}

#[test]
fn sizes_count_as_they_are_once_an_end_is_locked() {
    let scratch = Scratch::new();
    let (source, to) = (scratch.write("source", &data(2 << 20)), scratch.write("to", &vec![1; 2 << 20]));
    let ended = resized_meanwhile(&[&source, &to], &to, 2 * MIB, MIB);
    assert!(ended.code == 1 && ended.stderr.contains("1048576 less than the source"), "{}", ended.stderr);
    let new = scratch.file("new");
    for bytes in [MIB + 4096 + 17, 3 * MIB] {
        let ended = resized_meanwhile(&[&source, &new, "--verify"], &source, 2 * MIB, bytes);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert!(same(&source, &new) && fs::metadata(&new).unwrap().len() == bytes);
        fs::remove_file(&new).unwrap();
    }
    // Smaller than a block of any device by then.
    let ended = resized_meanwhile(&[&source, &new], &source, 2 * MIB, 5);
    assert!(ended.code == 1 && !ended.stderr.contains("panicked") && !Path::new(&new).exists(), "{}", ended.stderr);
}

#[test]
fn standard_input_is_read_ahead_while_what_came_is_written() {
    let scratch = Scratch::new();
    // Nobody reads the output yet. One piece at a time, and two pipes, would hold three quarters of what comes.
    let script = format!(
        "cd {}; head -c 262144 /dev/urandom > data; mkfifo in out; exec 3<>out; \
         {} copy - - --request-size 64K <in >out & timeout 30 cat data >in && head -c 262144 <&3 | cmp - data && wait $!",
        scratch.path().display(),
        binary()
    );
    run::ok(60, &["bash", "-c", &script]);
}
