//! Copies that are cut off and go on: killed, with servers that leave, with journals that are not theirs.

use forebay_tests::foreign::{Loop, Peer};
use forebay_tests::run;
use forebay_tests::server::{binary, forebay};
use forebay_tests::{Scratch, require};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use crate::{copied, data, refused, same};

/// Bytes that a journal says are durable.
fn settled(journal: &str) -> u64 {
    let file = fs::read(journal).unwrap_or_default();
    let long = |at: usize| file.get(at..at + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")));
    long(32).max(long(4096 + 32))
}

#[test]
fn a_copy_that_is_killed_goes_on_where_it_was_and_ends_identical() {
    let scratch = Scratch::new();
    let mut bytes = data(24 << 20);
    bytes[3 << 20..4 << 20].fill(0);
    bytes.extend([9; 77]);
    let source = scratch.write("source", &bytes);
    let (to, other, journal) = (scratch.file("to"), scratch.file("other"), scratch.file("journal"));
    fs::write(&other, vec![0xAA; 25 << 20]).unwrap();
    let words = [binary(), "copy", &source, &to, &other, "--resume", &journal, "--rate", "256K", "--request-size", "64K"];
    for _ in 0..2 {
        let before = settled(&journal);
        let mut copy = Peer::spawn(&words);
        run::wait_for("progress in the journal", Duration::from_mins(1), || {
            assert!(copy.ended().is_none(), "the copy takes 96 s");
            (settled(&journal) > before).then_some(())
        });
        copy.kill();
    }
    let known = settled(&journal);
    assert!((1..bytes.len() as u64).contains(&known), "{known}");
    // Everything that the journal calls durable is there.
    let known = usize::try_from(known).unwrap();
    assert!(fs::read(&to).unwrap()[..known] == bytes[..known] && fs::read(&other).unwrap()[..known] == bytes[..known]);
    let ended = forebay(&["-v", "copy", &source, &to, &other, "--resume", &journal, "--checksum", "--verify"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("of it before"), "{}", ended.stderr);
    assert_eq!(ended.stdout, format!("{}  {source}\n", run::sha256(Path::new(&source))));
    assert!(same(&source, &to) && fs::read(&other).unwrap()[..bytes.len()] == bytes[..]);
    assert!(!Path::new(&journal).exists(), "a copy that is over needs no journal");
}

#[test]
fn a_journal_of_another_copy_is_refused() {
    let scratch = Scratch::new();
    let source = scratch.write("source", &data(8 << 20));
    let (to, journal) = (scratch.file("to"), scratch.file("journal"));
    let words = [binary(), "copy", &source, &to, "--resume", &journal, "--rate", "64K"];
    let copy = Peer::spawn(&words);
    run::wait_for("progress in the journal", Duration::from_mins(1), || (settled(&journal) > 0).then_some(()));
    copy.kill();
    let another = scratch.file("another");
    refused(&[&source, &another, "--resume", &journal], 1, "another copy");
    assert!(!Path::new(&another).exists(), "nothing was made");
    let mut changed = data(8 << 20);
    changed[0] ^= 1;
    fs::write(&source, &changed).unwrap();
    File::options().write(true).open(&source).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    refused(&[&source, &to, "--resume", &journal], 1, "remove it to copy everything");
    // A destination that is gone, and one that came anew, perhaps under the same number.
    fs::rename(&to, scratch.file("kept")).unwrap();
    refused(&[&source, &to, "--resume", &journal], 1, "another copy");
    fs::remove_file(scratch.file("kept")).unwrap();
    fs::write(&to, b"").unwrap();
    refused(&[&source, &to, "--resume", &journal], 1, "another copy");
    let nothing = scratch.write("nothing", b"not a journal");
    refused(&[&source, &to, "--resume", &nothing], 1, "not the journal of a copy");
    fs::remove_file(&journal).unwrap();
    copied(&[&source, &to, "--resume", &journal]);
    assert!(same(&source, &to));
}

/// Begins a copy of which only a part has arrived when it is killed, and which says so in its journal.
fn cut_off(source: &str, to: &str, journal: &str) {
    let copy = Peer::spawn(&[binary(), "copy", source, to, "--resume", journal, "--rate", "128K", "--request-size", "64K"]);
    run::wait_for("progress in the journal", Duration::from_mins(1), || (settled(journal) > 0).then_some(()));
    copy.kill();
}

#[test]
fn a_journal_of_another_copy_that_settled_nothing_leaves_nothing_made() {
    let scratch = Scratch::new();
    let source = scratch.write("source", &data(1 << 20));
    let (to, another, journal) = (scratch.file("to"), scratch.file("another"), scratch.file("journal"));
    let copy = Peer::spawn(&[binary(), "copy", &source, &to, "--resume", &journal, "--rate", "1K"]);
    let begun = || fs::read(&journal).is_ok_and(|bytes| bytes.get(4096..4104) == Some(b"FBCOPYJ1"));
    run::wait_for("the journal", Duration::from_mins(1), || begun().then_some(()));
    copy.kill();
    refused(&[&source, &another, "--resume", &journal], 1, "another copy");
    assert!(!Path::new(&another).exists());
}

/// A server on `socket` for the file `disk`, with more words for it.
fn serve(socket: &str, disk: &str, filter: &[&str], more: &[&str]) -> Peer {
    Peer::serve(&[&["nbdkit", "-f", "-U", socket], filter, &["file", disk], more].concat(), socket)
}

#[test]
fn a_copy_goes_on_after_its_server_was_killed_and_ends_identical() {
    require(&["nbdkit"]);
    let scratch = Scratch::new();
    let source = scratch.write("source", &data(8 << 20));
    let (disk, socket, journal) = (scratch.sparse("disk", 9 << 20), scratch.file("s"), scratch.file("journal"));
    let uri = format!("nbd+unix:///?socket={socket}");
    // Bits in a second: the copy takes many.
    let slow = (&["--filter=rate"][..], &["rate=2M"][..]);
    for both in [true, false] {
        let server = serve(&socket, &disk, slow.0, slow.1);
        let words = [binary(), "copy", &source, &uri, "--resume", &journal, "--request-size", "64K"];
        let mut copy = Peer::spawn(&words);
        let before = settled(&journal);
        run::wait_for("progress in the journal", Duration::from_mins(2), || (settled(&journal) > before).then_some(()));
        server.kill();
        if both {
            copy.kill();
            continue;
        }
        let _faster = serve(&socket, &disk, &[], &[]);
        if !copy.wait(Duration::from_mins(1)).success() {
            copied(&[&source, &uri, "--resume", &journal]);
        }
    }
    let disk = fs::read(&disk).unwrap();
    assert!(disk[..8 << 20] == fs::read(&source).unwrap()[..] && disk[8 << 20..].iter().all(|&byte| byte == 0));
    assert!(!Path::new(&journal).exists(), "a copy that is over needs no journal");
}

#[test]
fn what_a_server_or_a_device_lost_is_not_taken_for_settled() {
    require(&["nbdkit"]);
    let scratch = Scratch::new();
    let source = scratch.write("source", &data(8 << 20));
    let (disk, socket, journal) = (scratch.sparse("disk", 8 << 20), scratch.file("s"), scratch.file("journal"));
    let attached = Loop::new(&disk, &[]);
    let device = attached.path();
    let server = serve(&socket, &disk, &[], &[]);
    let uri = format!("nbd+unix:///?socket={socket}");
    for to in [device, &uri] {
        cut_off(&source, to, &journal);
        let known = settled(&journal);
        let file = File::options().read(true).write(true).open(if to == device { to } else { &disk }).unwrap();
        let mut last = [0; 512];
        file.read_exact_at(&mut last, known - 512).unwrap();
        file.write_all_at(&[0; 512], known - 512).unwrap();
        file.sync_all().unwrap();
        refused(&[&source, to, "--resume", &journal], 1, "remove it to copy everything");
        file.write_all_at(&last, known - 512).unwrap();
        file.sync_all().unwrap();
        copied(&[&source, to, "--resume", &journal, "--verify"]);
    }
    attached.detach();
    drop(server);
    refused(&[&source, "ram:8M", "--resume", &journal], 2, "does not");
}

#[test]
fn files_that_came_anew_or_were_changed_are_told_though_they_look_alike() {
    let scratch = Scratch::new();
    let source = scratch.write("source", &data(8 << 20));
    let (to, kept, journal) = (scratch.file("to"), scratch.file("kept"), scratch.file("journal"));
    cut_off(&source, &to, &journal);
    // Another file with the same name and size, and often with the same number.
    fs::rename(&to, &kept).unwrap();
    let bytes = fs::read(&kept).unwrap();
    fs::remove_file(&kept).unwrap();
    fs::write(&to, bytes).unwrap();
    refused(&[&source, &to, "--resume", &journal], 1, "another copy");
    fs::remove_file(&journal).unwrap();
    fs::remove_file(&to).unwrap();
    cut_off(&source, &to, &journal);
    // Another content that claims to be as old.
    let file = File::options().write(true).open(&source).unwrap();
    let changed = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(b"changed", 0).unwrap();
    file.set_modified(changed).unwrap();
    refused(&[&source, &to, "--resume", &journal], 1, "another copy");
}
