//! Tables that parse, and what is said about those that do not.

use std::path::Path;

use super::*;

fn parse(text: &str) -> Vec<RowText> {
    TableText::parse(text).unwrap().rows
}

fn place(path: &str, offset: u64) -> Place {
    Place { device: DeviceName::File(path.into()), offset: Sector(offset) }
}

fn only(text: &str) -> TargetText {
    let mut rows = parse(text);
    assert_eq!(rows.len(), 1, "{text}");
    rows.remove(0).target
}

#[test]
fn every_target_parses() {
    assert_eq!(only("0 8 linear /dev/sdb 16"), TargetText::Linear(place("/dev/sdb", 16)));
    assert_eq!(only("0 8 stats a 0"), TargetText::Stats(place("a", 0)));
    assert_eq!(only("0 8 error"), TargetText::Error);
    let text = "0 8 zram algo=zstd mem_limit=1M backing_dev=ram:4M";
    let TargetText::Zram { options, backing } = only(text) else { panic!("not a zram") };
    assert_eq!((options.algorithm.name(), options.mem_limit), ("zstd", 1 << 20));
    assert_eq!(backing, Some(DeviceName::Ram { bytes: 4 << 20 }));
    let TargetText::Mirror { args, legs, log } = only("0 8 mirror disk 2 l 8 2 a 0 b 8 1 resync_rate=1M") else {
        panic!("not a mirror")
    };
    assert_eq!((args.features.resync_rate, legs), (1 << 20, vec![place("a", 0), place("b", 8)]));
    assert_eq!(log, Some(DeviceName::File("l".into())));
    let columns = vec![place("a", 0), place("b", 8)];
    assert_eq!(only("0 8 striped 2 4 a 0 b 8"), TargetText::Striped { chunk: SectorCount(4), columns });
    let (device, log) = (DeviceName::Ram { bytes: 1 << 20 }, DeviceName::Null { bytes: 4096 });
    assert_eq!(only("0 8 log-writes ram:1M null:4096"), TargetText::LogWrites { device, log });
}

#[test]
fn a_delay_has_up_to_three_detours() {
    let detour = |path, ms| Detour { place: place(path, 0), delay: Duration::from_millis(ms) };
    let delay = |read, write, flush| TargetText::Delay { read, write, flush };
    assert_eq!(only("0 8 delay a 0 5"), delay(detour("a", 5), None, None));
    assert_eq!(only("0 8 delay a 0 5 b 0 6"), delay(detour("a", 5), Some(detour("b", 6)), None));
    assert_eq!(only("0 8 delay a 0 1 b 0 2 c 0 3"), delay(detour("a", 1), Some(detour("b", 2)), Some(detour("c", 3))));
}

#[test]
fn flakey_without_features_fails_everything_and_with_them_only_what_they_say() {
    let flakiness = |text| match only(text) {
        TargetText::Flakey(_, flakiness) => (flakiness.reads, flakiness.writes),
        other => panic!("{other:?}"),
    };
    assert_eq!(flakiness("0 8 flakey a 0 5 6"), (DownReads::Failed, DownWrites::Failed));
    assert_eq!(flakiness("0 8 flakey a 0 5 6 1 drop_writes"), (DownReads::Served, DownWrites::Dropped));
    assert_eq!(flakiness("0 8 flakey a 0 5 6 2 error_reads error_writes"), (DownReads::Failed, DownWrites::Failed));
}

#[test]
fn the_kernels_cache_line_parses() {
    let text = "0 131072 writecache s my\\ disk /dev/nvme0n1 4096 2 high_watermark 60";
    let TargetText::Writecache { args, origin, fast } = only(text) else { panic!("not a cache") };
    assert_eq!((origin, fast), (DeviceName::File("my disk".into()), DeviceName::File("/dev/nvme0n1".into())));
    assert_eq!((args.block_bytes, args.options.high_watermark), (4096, Some(60)));
}

#[test]
fn the_kernels_snapshot_lines_parse() {
    let TargetText::Snapshot { args, origin, cow } = only("0 8 snapshot a /dev/b PO 16") else { panic!("not a snapshot") };
    assert_eq!((origin, cow), (DeviceName::File("a".into()), DeviceName::File("/dev/b".into())));
    assert_eq!((args.store.word(), args.chunk_sectors), ("PO", 16));
    let TargetText::SnapshotMerge { args, .. } = only("0 8 snapshot-merge a b P 0") else { panic!("not a merge") };
    assert_eq!(args.chunk_sectors, 0);
    assert_eq!(only("0 8 snapshot-origin a"), TargetText::SnapshotOrigin(DeviceName::File("a".into())));
}

#[test]
fn lines_follow_each_other() {
    let rows = parse("0 8 error; 8 16 linear a 0 # the rest\n24 8 error");
    let extents: Vec<_> = rows.iter().map(|row| (row.extent.start.0, row.extent.count.0)).collect();
    assert_eq!(extents, [(0, 8), (8, 16), (24, 8)]);
}

#[test]
fn only_what_keeps_something_writes_when_it_opens() {
    for (text, writes) in [
        ("0 8 linear a 0", false),
        ("0 8 error; 8 8 stats a 0", false),
        ("0 8 writecache s a b 512 0", true),
        ("0 8 error; 8 8 log-writes a b", true),
        ("0 8 zram", false),
        ("0 8 zram backing_dev=a", true),
        ("0 8 snapshot-origin a", true),
        ("0 8 snapshot a b P 8", true),
        ("0 8 snapshot-merge a b P 8", true),
    ] {
        assert_eq!(TableText::parse(text).unwrap().writes_when_opened(), writes, "{text}");
    }
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    for (text, sentence) in [
        ("", "table line 1: there is nothing: write START LENGTH TARGET"),
        ("gibberish", "table line 1: the start \"gibberish\" is not a whole number"),
        ("0", "table line 1: the length is missing"),
        ("0 8", "table line 1: the target is missing"),
        ("0 0 error", "table line 1: the length is 0: give at least one sector"),
        ("0 -8 error", "table line 1: the length \"-8\" is not a whole number"),
        ("0 18014398509481985 error", "table line 1: \"18014398509481985\" is too long"),
        ("8 8 error", "table line 1: it starts at sector 8, but the line before ends at 0"),
        ("0 8 error\n\n9 8 error", "table line 3: it starts at sector 9, but the line before ends at 8"),
        ("0 8 mirrors a b", "table line 1: the target \"mirrors\" is not known: use linear"),
        ("0 8 mirror a b", "table line 1: mirror: the log \"a\" is not known: use core or disk"),
        ("0 8 linear", "table line 1: the device of linear is missing: write `linear DEVICE OFFSET`"),
        ("0 8 linear a", "table line 1: the offset of linear is missing"),
        ("0 8 linear a x", "table line 1: the offset \"x\" is not a whole number"),
        ("0 8 linear a 0 b", "table line 1: \"b\" is too much for linear: write `linear DEVICE OFFSET`"),
        ("0 8 linear ram:lots 0", "table line 1: \"ram:lots\" is not a size"),
        ("0 8 error now", "table line 1: \"now\" is too much for error: write `error`"),
        ("0 8 striped 2 4 a 0", "table line 1: the device of striped is missing"),
        ("0 8 flakey a 0 1 1 1 corrupt", "table line 1: flakey does not know \"corrupt\""),
        ("0 8 zram fast", "table line 1: \"fast\" is not an option of zram"),
        ("0 8 error; 8 8 writecache p a b 4096 0", "table line 2: Mode p"),
        ("0 8 snapshot a b", "table line 1: the store of snapshot is missing: write `snapshot ORIGIN COW"),
        ("0 8 snapshot a ram:x P 8", "table line 1: \"ram:x\" is not a size"),
        ("0 8 snapshot-merge a b N 8", "table line 1: a store N cannot be merged"),
        ("0 8 snapshot-origin a b", "table line 1: \"b\" is too much for snapshot-origin"),
        ("0 8 writecache s a b 1000 0", "table line 1: Invalid block size: 1000"),
    ] {
        let error = TableText::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(sentence), "{text:?} gives {error:?}");
    }
}

#[test]
fn a_clone_writes_to_its_metadata_and_destination_and_only_reads_its_source() {
    let text = TableText::parse("0 65536 clone meta local nbd://host/disk 8").unwrap();
    let target = &text.rows()[0].target;
    let told: Vec<_> = target.devices().into_iter().map(|name| (name.to_string(), target.only_reads(name))).collect();
    let wanted = [("meta", false), ("local", false), ("nbd://host/disk", true)];
    assert_eq!(told, wanted.map(|(name, only_reads)| (name.to_owned(), only_reads)));
    let same = TableText::parse("0 65536 clone meta nbd://host/disk nbd://host/disk 8").unwrap();
    let target = &same.rows()[0].target;
    assert!(target.devices().into_iter().all(|name| !target.only_reads(name)));
}

#[test]
fn a_table_tells_what_it_names() {
    let text = "0 8 linear a 0; 8 8 striped 1 8 b 0; 16 8 delay c 0 1 d 0 1; 24 8 log-writes e f; 32 8 stats ram:1M 0; \
        40 8 mirror disk 2 g 8 2 h 0 i 0; 48 8 zram dict=j image=k backing_dev=l; 56 8 clone m n nbd://host/o 8; \
        64 8 writecache s p q 4096 2 side r; 72 8 snapshot s t P 8; 80 8 snapshot-origin u; 88 8 snapshot-merge v w P 8; \
        96 8 error; 104 8 flakey x 0 1 1";
    let table = TableText::parse(text).unwrap();
    let names = table.names();
    assert!(names.saved && !TableText::parse("0 8 error").unwrap().names().saved);
    let devices: Vec<_> = names.devices.iter().map(ToString::to_string).collect();
    let expected = "a b c d e f ram:1048576 h i g l m n nbd://host/o p q s t u v w x";
    assert_eq!(devices.join(" "), expected);
    assert_eq!((names.read, names.made), (vec![Path::new("j")], vec![Path::new("k"), Path::new("r")]));
}
