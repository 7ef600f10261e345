//! Stacks over memory and over files: opened, written, told things, closed and opened again.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Bio, Sector, Status, Target, call};

use super::*;

/// Runs `work` on a reactor of its own.
fn run<T>(work: impl AsyncFnOnce(&Reactor, &BufferPool) -> T) -> T {
    let reactor = Reactor::new(engine(Engine::Auto).unwrap());
    let pool = BufferPool::new(&reactor);
    let output = reactor.run(work(&reactor, &pool)).unwrap();
    reactor.clear();
    output
}

async fn write(stack: &Stack, pool: &BufferPool, sector: u64, byte: u8) -> Status {
    let mut payload = pool.take(4096);
    payload.bytes_mut().fill(byte);
    call(&**stack.table(), Bio::write(Sector(sector), Rc::clone(payload.segments()), 0, 4096)).await.status()
}

async fn read(stack: &Stack, pool: &BufferPool, sector: u64) -> Vec<u8> {
    let mut payload = pool.take(4096);
    let bio = call(&**stack.table(), Bio::read(Sector(sector), Rc::clone(payload.segments()), 0, 4096)).await;
    assert_eq!(bio.status(), Status::Ok);
    drop(bio);
    payload.bytes_mut()[..4096].to_vec()
}

/// A folder of this test alone, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("forebay-stack-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, bytes: u64) -> String {
        let path = self.0.join(name);
        File::create(&path).unwrap().set_len(bytes).unwrap();
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn rows_of_every_kind_make_one_table() {
    let text = "0 8 linear ram:4K 0; 8 16 striped 2 4 ram:1M 0 ram:1M 8; 24 8 error; 32 8 delay ram:1M 0 1\n\
                40 8 flakey ram:1M 0 1000 0; 48 8 log-writes ram:1M ram:1M; 56 8 stats null:4K 0\n\
                64 2048 writecache s ram:1M ram:1M 4096 0; 2112 2048 zram algo=zstd level=1";
    run(async |reactor, pool| {
        let stack = Stack::open(reactor, pool, "all", text).await.unwrap();
        let status = stack.status();
        let kinds: Vec<_> = status.rows.iter().map(|(_, kind)| *kind).collect();
        assert_eq!(kinds, ["linear", "striped", "error", "delay", "flakey", "log-writes", "stats", "writecache", "zram"]);
        assert_eq!((stack.sectors().0, status.caches.len(), status.counted.len(), status.devices.len()), (4160, 1, 1, 10));
        assert_eq!(write(&stack, pool, 2112, 3).await, Status::Ok);
        assert_eq!((read(&stack, pool, 2112).await, stack.status().zrams[0].status.same_pages), (vec![3; 4096], 1));
        for sector in (0..72).step_by(8) {
            let expected = if sector == 24 { Status::IoError } else { Status::Ok };
            assert_eq!(write(&stack, pool, sector, 1).await, expected, "sector {sector}");
        }
        assert_eq!(read(&stack, pool, 64).await, [1; 4096]);
        assert_eq!(stack.status().counted[0].snapshot.of(forebay_block::Op::Write).requests, 1);
        stack.close().await.unwrap();
    });
}

#[test]
fn closing_keeps_dirty_data_in_the_cache_and_draining_empties_it() {
    let folder = Folder::new("dirty");
    let (origin, cache) = (folder.file("origin", 1 << 20), folder.file("cache", 1 << 20));
    let text = format!("0 2048 writecache s {origin} {cache} 4096 0");
    run(async |reactor, pool| {
        let stack = Stack::open(reactor, pool, "disk", &text).await.unwrap();
        assert_eq!(write(&stack, pool, 8, 7).await, Status::Ok);
        stack.close().await.unwrap();
    });
    assert!(std::fs::read(&origin).unwrap().iter().all(|&byte| byte == 0));
    run(async |reactor, pool| {
        let stack = Stack::open(reactor, pool, "disk", &text).await.unwrap();
        assert_eq!((stack.dirty_bytes(), read(&stack, pool, 8).await), (4096, vec![7; 4096]));
        let mut last = DrainProgress::default();
        stack.drain(Duration::from_millis(1), |progress| last = progress).await.unwrap();
        assert_eq!((last.at_start_bytes, last.left_bytes, stack.dirty_bytes()), (4096, 0, 0));
        stack.close().await.unwrap();
    });
    assert!(std::fs::read(&origin).unwrap()[4096..8192].iter().all(|&byte| byte == 7));
}

#[test]
fn one_file_under_two_names_is_one_device() {
    let folder = Folder::new("names");
    let path = folder.file("disk", 1 << 20);
    let link = folder.0.join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    run(async |reactor, pool| {
        let text = format!("0 8 linear {path} 0; 8 8 linear {} 0", link.display());
        let stack = Stack::open(reactor, pool, "twice", &text).await.unwrap();
        assert_eq!(write(&stack, pool, 0, 3).await, Status::Ok);
        assert_eq!(read(&stack, pool, 8).await, [3; 4096]);
        assert_eq!(stack.status().devices.len(), 1);
    });
}

#[test]
fn stacks_that_name_one_origin_share_it() {
    let folder = Folder::new("snapshot");
    let (origin, cow, other) = (folder.file("origin", 1 << 20), folder.file("cow", 1 << 20), folder.file("other", 1 << 20));
    let line = |text: String| TableText::parse(&text).unwrap();
    let front = line(format!("0 2048 snapshot-origin {origin}"));
    let snapshots = [line(format!("0 2048 snapshot {origin} {cow} P 8")), line(format!("0 2048 snapshot {origin} {other} N 64"))];
    for round in 1..=2 {
        run(async |reactor, pool| {
            let devices = Devices::new(reactor, FileOptions::default());
            let front = Stack::open_on(&devices, pool, "origin", &front, false).await.unwrap();
            let one = Stack::open_on(&devices, pool, "one", &snapshots[0], false).await.unwrap();
            let two = Stack::open_on(&devices, pool, "two", &snapshots[1], false).await.unwrap();
            assert_eq!(write(&front, pool, 8, round).await, Status::Ok);
            assert_eq!(write(&one, pool, 16, 9).await, Status::Ok);
            assert_eq!((read(&front, pool, 8).await, read(&front, pool, 16).await), (vec![round; 4096], vec![0; 4096]));
            assert_eq!((read(&one, pool, 8).await, read(&one, pool, 16).await), (vec![0; 4096], vec![9; 4096]));
            assert_eq!(read(&two, pool, 8).await, vec![round - 1; 4096], "it begins anew with its server");
            let status = one.status();
            assert_eq!(status.snapshots[0].status.to_string(), "32/2048 16");
            for stack in [one, two, front] {
                stack.close().await.unwrap();
            }
        });
    }
    run(async |reactor, pool| {
        let text = format!("0 2048 snapshot-merge {origin} {cow} P 8");
        let stack = Stack::open(reactor, pool, "merge", &text).await.unwrap();
        while stack.status().snapshots[0].status.to_string() != "16/2048 16" {
            reactor.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!((read(&stack, pool, 8).await, read(&stack, pool, 16).await), (vec![0; 4096], vec![9; 4096]));
        stack.close().await.unwrap();
    });
    assert!(std::fs::read(&origin).unwrap()[8192..12_288].iter().all(|&byte| byte == 9));
}

#[test]
fn a_store_belongs_to_one_snapshot_and_is_no_origin() {
    let folder = Folder::new("stores");
    let [a, b, cow, other] = ["a", "b", "cow", "other"].map(|name| folder.file(name, 1 << 20));
    let snapshot = |origin: &str, cow: &str| TableText::parse(&format!("0 2048 snapshot {origin} {cow} P 8")).unwrap();
    let merge = TableText::parse(&format!("0 2048 snapshot-merge {b} {cow} P 8")).unwrap();
    run(async |reactor, pool| {
        let devices = Devices::new(reactor, FileOptions::default());
        let stack = Stack::open_on(&devices, pool, "one", &snapshot(&a, &cow), false).await.unwrap();
        for text in [&snapshot(&b, &cow), &snapshot(&a, &cow), &merge, &snapshot(&b, &a), &snapshot(&cow, &other)] {
            let error = Stack::open_on(&devices, pool, "two", text, false).await.err().unwrap().to_string();
            assert!(error.contains("is that of another snapshot, or one of the two"), "{error}");
        }
        let chained = Stack::open_on(&devices, pool, "two", &snapshot(&b, &other), false).await.unwrap();
        for stack in [stack, chained] {
            stack.close().await.unwrap();
        }
        let again = Stack::open_on(&devices, pool, "two", &snapshot(&b, &cow), false).await.unwrap();
        again.close().await.unwrap();
    });
}

#[test]
fn an_origin_that_is_only_read_shows_what_is_merged_into_it() {
    let folder = Folder::new("front");
    let (origin, cow) = (folder.file("origin", 1 << 20), folder.file("cow", 1 << 20));
    let line = |text: String| TableText::parse(&text).unwrap();
    let front = line(format!("0 2048 snapshot-origin {origin}"));
    run(async |reactor, pool| {
        let devices = Devices::new(reactor, FileOptions::default());
        let snapshot = line(format!("0 2048 snapshot {origin} {cow} P 8"));
        let snapshot = Stack::open_on(&devices, pool, "snapshot", &snapshot, false).await.unwrap();
        assert_eq!(write(&snapshot, pool, 8, 7).await, Status::Ok);
        snapshot.close().await.unwrap();
    });
    run(async |reactor, pool| {
        let devices = Devices::new(reactor, FileOptions::default());
        let front = Stack::open_on(&devices, pool, "front", &front, true).await.unwrap();
        let merge = line(format!("0 2048 snapshot-merge {origin} {cow} P 8"));
        let merge = Stack::open_on(&devices, pool, "merge", &merge, false).await.unwrap();
        assert_eq!(read(&front, pool, 8).await, [7; 4096], "nothing is merged yet");
        for stack in [merge, front] {
            stack.close().await.unwrap();
        }
    });
}

#[test]
fn a_mirror_of_two_files_survives_the_loss_of_one() {
    let folder = Folder::new("mirror");
    let [a, b, log] = ["a", "b", "log"].map(|name| folder.file(name, 1 << 20));
    let line = |log: &str| format!("0 2048 mirror {log} 64 nosync 2 {a} 0 {b} 0 1 handle_errors");
    for (log, words) in [("core 2".to_owned(), 2), (format!("disk 3 {log}"), 3)] {
        run(async |reactor, pool| {
            let stack = Stack::open(reactor, pool, "disk", &line(&log)).await.unwrap();
            assert_eq!(write(&stack, pool, 8, words).await, Status::Ok);
            let status = stack.status().mirrors[0].status.line();
            assert!(status.starts_with(&format!("2 {a} {b} 32/32 1 AA ")), "{status}");
            assert_eq!(stack.scrub(false).await.unwrap()[0].compared, 2048);
            stack.message(&["revive"]).await.unwrap();
            stack.close().await.unwrap();
        });
        let [first, second] = [&a, &b].map(|path| std::fs::read(path).unwrap());
        assert!(first == second && first[4096..8192].iter().all(|&byte| byte == words));
    }
    assert_eq!(std::fs::read(&log).unwrap()[..16], [0x72, 0x52, 0x69, 0x4d, 2, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0]);
    let error = run(async |reactor, pool| {
        let text = format!("0 2048 mirror disk 2 {a} 64 2 {a} 0 {b} 0");
        Stack::open(reactor, pool, "disk", &text).await.err().unwrap().to_string()
    });
    assert!(error.contains("cannot be a leg and the log at once"), "{error}");
}

#[test]
fn a_device_cannot_be_its_own_cache() {
    let folder = Folder::new("own");
    let path = folder.file("disk", 1 << 20);
    let text = format!("0 2048 writecache s {path} {path} 4096 0");
    let error = run(async |reactor, pool| Stack::open(reactor, pool, "own", &text).await.err().unwrap().to_string());
    assert_eq!(error, format!("table line 1: {path} cannot be its own cache: give two devices"));
    let text = format!("0 2048 snapshot {path} {path} P 8");
    let error = run(async |reactor, pool| Stack::open(reactor, pool, "own", &text).await.err().unwrap().to_string());
    assert_eq!(error, format!("table line 1: {path} cannot be its own snapshot: give two devices"));
}

#[test]
fn what_does_not_open_is_named() {
    let folder = Folder::new("errors");
    let small = folder.file("small", 4096);
    let other = folder.file("other", 1 << 20);
    std::fs::write(&other, vec![0x55; 1 << 20]).unwrap();
    let missing = folder.0.join("missing").display().to_string();
    for (text, parts) in [
        ("0 8 nonsense".to_owned(), ["table line 1", "nonsense"]),
        (format!("0 8 error\n8 8 linear {missing} 0"), ["table line 2", &missing]),
        (format!("0 16 linear {small} 0"), ["table line 1: linear", "do not fit the 8 sectors"]),
        (format!("0 2048 writecache s ram:1M {other} 4096 0"), [&other, "Invalid magic"]),
        ("0 4096 writecache s ram:1M ram:1M 4096 0".to_owned(), ["ram:1048576", "4096 sectors"]),
    ] {
        let error = run(async |reactor, pool| Stack::open(reactor, pool, "x", &text).await.err().unwrap().to_string());
        assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
    }
    assert!(!Path::new(&missing).exists());
}

#[test]
fn a_mirror_of_one_device_is_refused() {
    let folder = Folder::new("twice");
    let leg = folder.file("leg", 1 << 20);
    let alias = folder.0.join("alias");
    std::os::unix::fs::symlink(&leg, &alias).unwrap();
    let refused = |text: &str| {
        run(async |reactor, pool| Stack::open(reactor, pool, "disk", text).await.err().map(|error| error.to_string()))
    };
    let mirror = |legs: &str| refused(&format!("0 64 mirror core 2 64 nosync 2 {legs}"));
    let twice = |name: &str| Some(format!("table line 1: {name} is named twice: give different devices"));
    let server = "nbd+unix:///disk?socket=/nowhere/nbd.sock";
    assert_eq!(mirror(&format!("{server} 0 {server} 0")), twice(server), "before anything is connected to");
    assert_eq!(mirror(&format!("{leg} 0 {} 63", alias.display())), twice(&alias.display().to_string()));
    assert_eq!(mirror(&format!("{leg} 0 {} 64", alias.display())), None, "apart from each other");
}

#[test]
fn a_cache_takes_messages_and_can_be_suspended_and_a_plain_stack_cannot() {
    run(async |reactor, pool| {
        let plain = Stack::open(reactor, pool, "plain", "0 8 linear ram:4K 0").await.unwrap();
        let told = plain.message(&["flush"]).await.unwrap_err().to_string();
        assert_eq!(told, "plain has no write cache, mirror or clone: messages reach only these");
        assert!(plain.suspend().await.is_err() && plain.resume().is_err());
        let held = plain.suspend().await.unwrap_err().to_string();
        assert_eq!(held, "plain has no write cache, mirror or clone: suspend holds only these");

        let cached = Stack::open(reactor, pool, "cached", "0 2048 writecache s ram:1M ram:1M 4096 0").await.unwrap();
        assert_eq!(cached.message(&["FLUSH"]).await, Ok(()));
        assert!(matches!(cached.message(&["flush", "now"]).await, Err(StackError::Message(_))));
        cached.suspend().await.unwrap();
        assert!(cached.status().suspended);
        let mut payload = pool.take(4096);
        payload.bytes_mut().fill(1);
        let held = call(&**cached.table(), Bio::write(Sector(0), Rc::clone(payload.segments()), 0, 4096));
        reactor.sleep(Duration::from_millis(20)).await;
        assert_eq!(cached.dirty_bytes(), 0, "a suspended cache takes nothing");
        cached.resume().unwrap();
        assert_eq!((held.await.status(), cached.status().suspended), (Status::Ok, false));
        assert_eq!(cached.table().kind(), "table");
    });
}

#[test]
fn mirrors_and_clones_are_suspended_too() {
    let mirror = "0 2048 mirror core 2 64 nosync 2 ram:1M 0 ram:1M 0";
    let clone = "0 2048 clone ram:64K ram:1M ram:1M 8";
    for text in [mirror, clone] {
        run(async |reactor, pool| {
            let stack = Stack::open(reactor, pool, "disk", text).await.unwrap();
            assert_eq!(write(&stack, pool, 0, 1).await, Status::Ok);
            stack.suspend().await.unwrap();
            assert!(stack.status().suspended);
            let mut payload = pool.take(4096);
            payload.bytes_mut().fill(2);
            let held = call(&**stack.table(), Bio::write(Sector(8), Rc::clone(payload.segments()), 0, 4096));
            let flush = call(&**stack.table(), Bio::flush());
            let writes = || stack.status().devices.iter().map(|device| device.counts.requests).sum::<u64>();
            let before = writes();
            reactor.sleep(Duration::from_millis(20)).await;
            assert_eq!(writes(), before, "{text}: a suspended stack does nothing");
            stack.resume().unwrap();
            assert_eq!((held.await.status(), flush.await.status()), (Status::Ok, Status::Ok));
            assert_eq!(read(&stack, pool, 8).await[0], 2);
            stack.suspend().await.unwrap();
            let held = call(&**stack.table(), Bio::flush());
            stack.close().await.unwrap();
            assert_eq!(held.await.status(), Status::Aborted, "{text}");
        });
    }
}

#[test]
fn a_suspended_stack_closes_and_what_it_held_back_is_aborted() {
    run(async |reactor, pool| {
        let stack = Stack::open(reactor, pool, "held", "0 2048 writecache s ram:1M ram:1M 4096 0").await.unwrap();
        stack.suspend().await.unwrap();
        let held = call(&**stack.table(), Bio::flush());
        stack.close().await.unwrap();
        assert_eq!(held.await.status(), Status::Aborted);
    });
}

#[test]
fn time_left_follows_the_mean_speed() {
    let progress = |left_bytes, seconds| DrainProgress { at_start_bytes: 100, left_bytes, elapsed: Duration::from_secs(seconds) };
    assert_eq!(progress(100, 5).time_left(), None);
    assert_eq!(progress(75, 5).time_left(), Some(Duration::from_secs(15)));
    assert_eq!(progress(0, 5).time_left(), Some(Duration::ZERO));
}

#[test]
fn what_is_a_compressed_ram_disks_alone_is_given_to_one() {
    let folder = Folder::new("alone");
    let backing = folder.file("backing", 1 << 20);
    let alias = folder.0.join("alias");
    std::os::unix::fs::symlink(&backing, &alias).unwrap();
    let image = folder.0.join("image");
    let place = folder.0.display();
    let refused =
        |text: &str| run(async |reactor, pool| Stack::open(reactor, pool, "disk", text).await.err().unwrap().to_string());
    let twice = format!("0 64 zram backing_dev={backing}; 64 64 zram backing_dev={}", alias.display());
    assert_eq!(refused(&twice), format!("table line 2: {} is named twice: give different devices", alias.display()));
    let same = format!(
        "0 64 zram image={}; 64 64 zram image={place}/../{}/image",
        image.display(),
        folder.0.file_name().unwrap().display()
    );
    assert!(refused(&same).ends_with("is the image of another disk: give each its own"), "{}", refused(&same));
    let nowhere = refused(&format!("0 64 zram image={place}/missing/image"));
    assert!(nowhere.contains("missing/image: No such file or directory"), "{nowhere}");
    for wrong in [folder.file("empty", 0), "/dev/zero".to_owned()] {
        let reason = refused(&format!("0 64 zram algo=zstd dict={wrong}"));
        assert!(reason.ends_with("a dictionary is a regular file of 1 byte to 16 MiB"), "{reason}");
    }
    run(async |reactor, pool| {
        let devices = Devices::new(reactor, FileOptions::default());
        let line = TableText::parse(&format!("0 64 zram backing_dev={backing} image={}", image.display())).unwrap();
        let first = Stack::open_on(&devices, pool, "first", &line, false).await.unwrap();
        assert!(Stack::open_on(&devices, pool, "second", &line, false).await.is_err());
        first.close().await.unwrap();
        drop(first);
        Stack::open_on(&devices, pool, "later", &line, false).await.unwrap().close().await.unwrap();
    });
}
