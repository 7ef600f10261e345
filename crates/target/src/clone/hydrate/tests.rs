//! Hydration in the background, its messages and its status.

use forebay_block::{Bio, Op, Status, Target};

use super::*;
use crate::below::testing::{extent, write};
use crate::clone::MessageError;
use crate::clone::request::tests::{Bench, SECTORS, original};

fn complete(status: &crate::clone::CloneStatus) -> bool {
    status.hydrated == status.regions
}

fn copied(bench: &Bench) -> bool {
    bench.destination.bytes.borrow()[..SECTORS * 512] == original(0, SECTORS)
}

#[test]
fn everything_is_hydrated_in_batches_whatever_the_threshold_is() {
    for (words, sizes) in [
        ("", vec![8; 12]),
        ("0 2 hydration_batch_size 4", vec![32, 32, 32]),
        ("0 4 hydration_batch_size 5 hydration_threshold 3", vec![40, 40]),
        ("0 4 hydration_batch_size 100 hydration_threshold 1", vec![]),
    ] {
        let mut bench = Bench::new();
        let clone = bench.open(words);
        bench.until(&clone, complete);
        let rest = SECTORS as u64 - sizes.iter().sum::<u64>();
        let reads: Vec<u64> = bench.source.take_seen().iter().map(|(op, extent)| (*op, extent.count.0).1).collect();
        assert_eq!(reads, [sizes, vec![rest]].concat(), "{words}");
        assert!(copied(&bench));
        assert_eq!((clone.status().counts.in_background, clone.status().hydrating), (13, 0));
        assert_eq!(clone.events().count(), 0, "not yet durably");
        bench.until(&clone, |status| status.commits > 0);
        bench.reactor.run(clone.events().after(0, None)).unwrap();
        bench.kill();
        let clone = bench.open(words);
        assert_eq!((clone.status().hydrated, clone.events().count()), (13, 0), "durably");
        assert_eq!(bench.status_of(&clone, Bio::flush()), Status::Ok);
        assert!(bench.source.take_seen().is_empty() && bench.metadata.take_seen().is_empty());
    }
}

#[test]
fn no_more_than_the_threshold_is_in_hydration() {
    let bench = Bench::new();
    bench.source.hold.set(true);
    let clone = bench.open("0 4 hydration_threshold 3 hydration_batch_size 2");
    (0..8).for_each(|_| bench.reactor.turn(false).unwrap());
    // Two batches of two: the third region makes room for none.
    assert_eq!(clone.status().hydrating, 4);
    assert_eq!(clone.message(&["hydration_threshold", "7"]), Ok(()));
    (0..8).for_each(|_| bench.reactor.turn(false).unwrap());
    assert_eq!(clone.status().hydrating, 8);
    bench.source.hold.set(false);
    (0..4).for_each(|_| bench.source.end_held(0));
    bench.until(&clone, complete);
    assert!(copied(&bench));
}

#[test]
fn a_write_to_a_region_in_hydration_waits_for_it_and_wins() {
    let bench = Bench::new();
    bench.source.hold.set(true);
    let clone = bench.open("");
    (0..8).for_each(|_| bench.reactor.turn(false).unwrap());
    let writing = crate::below::testing::call(&*clone, write(2, &[7; 512]));
    let whole = crate::below::testing::call(&*clone, write(0, &[8; 1024]));
    (0..8).for_each(|_| bench.reactor.turn(false).unwrap());
    assert!(bench.destination.take_seen().is_empty());
    bench.source.hold.set(false);
    bench.source.end_held(0);
    let ended = bench.reactor.run(async { (writing.await.status(), whole.await.status()) }).unwrap();
    assert_eq!(ended, (Status::Ok, Status::Ok));
    bench.until(&clone, complete);
    assert_eq!(bench.read(&clone, 0, 8), [vec![8; 1024], vec![7; 512], original(3, 5)].concat());
    assert_eq!(bench.source.take_seen()[0], (Op::Read, extent(0, 8)), "read once");
}

#[test]
fn holes_of_the_source_are_not_read_and_zeroes_are_not_written_as_data() {
    let bench = Bench::new();
    bench.source.bytes.borrow_mut()[20 * 512..60 * 512].fill(0);
    let clone = bench.open("0 2 hydration_batch_size 4");
    bench.until(&clone, complete);
    let reads: Vec<_> = bench.source.take_seen().iter().map(|(_, extent)| *extent).collect();
    assert_eq!(reads, [extent(0, 24), extent(56, 32), extent(88, 12)], "sectors 24 to 56 are whole regions of zeroes");
    assert!(bench.destination.take_seen().contains(&(Op::WriteZeroes, extent(24, 32))));
    assert_eq!(clone.status().counts.holes, 4);
    assert_eq!(bench.read(&clone, 16, 48), [original(16, 4), vec![0; 40 * 512], original(60, 4)].concat());
}

#[test]
fn hydration_waits_until_it_is_enabled_and_stops_when_it_is_disabled() {
    let bench = Bench::new();
    let clone = bench.open("1 no_hydration 2 hydration_rate 4096");
    bench.reactor.run(bench.reactor.sleep(Duration::from_mins(1))).unwrap();
    assert_eq!(clone.status().hydrated, 0);
    assert_eq!(clone.message(&["Enable_Hydration"]), Ok(()));
    bench.until(&clone, |status| status.hydrated > 2);
    assert_eq!(clone.message(&["disable_hydration"]), Ok(()));
    bench.until(&clone, |status| status.hydrating == 0);
    let hydrated = clone.status().hydrated;
    bench.reactor.run(bench.reactor.sleep(Duration::from_mins(1))).unwrap();
    assert_eq!((clone.status().hydrated, hydrated < 13), (hydrated, true));
}

#[test]
fn messages_change_what_the_status_says() {
    let bench = Bench::new();
    let clone = bench.still();
    let line = |words: &str| format!("8 4/8 8 0/13 0 {words} rw");
    assert_eq!(clone.status().line(), line("1 no_hydration 4 hydration_threshold 1 hydration_batch_size 1"));
    for words in
        [["hydration_threshold", "16"], ["HYDRATION_BATCH_SIZE", "4"], ["hydration_rate", "1000"], ["hydration_latency_us", "0"]]
    {
        assert_eq!(clone.message(&words), Ok(()));
    }
    let changed = "1 no_hydration 8 hydration_threshold 16 hydration_batch_size 4 hydration_rate 1000 hydration_latency_us 0";
    assert_eq!(clone.status().line(), line(changed));
    for words in [&["flush"][..], &["hydration_threshold"], &["hydration_speed", "1"], &[]] {
        assert_eq!(clone.message(words), Err(MessageError::Unknown(words.join(" "))));
    }
    for words in [["hydration_threshold", "0"], ["hydration_batch_size", "many"]] {
        assert!(matches!(clone.message(&words), Err(MessageError::Number(_))));
    }
    assert_eq!(clone.status().line(), line(changed));
}

#[test]
fn a_rate_is_kept() {
    let bench = Bench::of(8 * 1000);
    let began = bench.reactor.now();
    let clone = bench.open("0 4 hydration_batch_size 16 hydration_rate 409600");
    bench.until(&clone, complete);
    let took = bench.reactor.now().saturating_sub(began).as_millis();
    assert!((9_500..11_500).contains(&took), "4,096,000 bytes took {took} ms");
}

#[test]
fn a_write_does_not_wait_for_the_rate() {
    let bench = Bench::of(8 * 1000);
    let clone = bench.open("0 4 hydration_batch_size 16 hydration_rate 4096");
    bench.until(&clone, |status| status.hydrated == 16);
    let began = bench.reactor.now();
    bench.write(&clone, 8 * 16 + 1, 1, 7);
    bench.write(&clone, 8 * 999 + 1, 1, 7);
    assert_eq!((clone.status().hydrated, bench.reactor.now().saturating_sub(began)), (18, Duration::ZERO));
}

#[test]
fn what_was_read_is_hydrated_next_where_that_is_asked_for() {
    let bench = Bench::new();
    let clone = bench.open("2 no_hydration hydrate_on_read 2 hydration_batch_size 2");
    assert_eq!(bench.read(&clone, 36, 20), original(36, 20));
    bench.until(&clone, |status| status.hydrated == 3);
    bench.reactor.run(bench.reactor.sleep(Duration::from_mins(1))).unwrap();
    assert_eq!(clone.status().hydrated, 3);
    bench.source.take_seen();
    assert_eq!(bench.read(&clone, 32, 24), original(32, 24));
    assert!(bench.source.take_seen().is_empty());
}

#[test]
fn what_cannot_be_copied_is_tried_six_times_then_left_alone_until_hydration_is_enabled_again() {
    let bench = Bench::new();
    bench.source.bad_sector.set(Some(42));
    let clone = bench.open("0 2 hydration_batch_size 13");
    bench.until(&clone, |status| status.left_alone == 1);
    assert_eq!(clone.events().count(), 1);
    assert!(bench.reactor.now() >= Duration::from_secs(1 + 2 + 4 + 8 + 16));
    assert_eq!((clone.status().hydrated, clone.status().counts.failed), (12, 6), "everything else went on");
    bench.source.take_seen();
    bench.reactor.run(bench.reactor.sleep(Duration::from_mins(10))).unwrap();
    assert!(bench.source.take_seen().is_empty());
    bench.source.bad_sector.set(None);
    assert_eq!(clone.message(&["enable_hydration"]), Ok(()));
    bench.until(&clone, complete);
    assert!(copied(&bench) && clone.status().left_alone == 0);
}

#[test]
fn a_write_hydrates_what_was_left_alone() {
    let bench = Bench::new();
    bench.destination.bad_sector.set(Some(42));
    let clone = bench.open("");
    bench.until(&clone, |status| status.left_alone == 1);
    bench.destination.bad_sector.set(None);
    bench.write(&clone, 41, 1, 7);
    assert!(complete(&clone.status()) && clone.status().left_alone == 0);
    assert_eq!(bench.read(&clone, 40, 8), [original(40, 1), vec![7; 512], original(42, 6)].concat());
}

#[test]
fn a_region_that_failed_and_was_written_meanwhile_is_done() {
    let bench = Bench::new();
    bench.source.bad_sector.set(Some(42));
    let clone = bench.open("0 2 hydration_batch_size 13");
    bench.until(&clone, |status| status.counts.failed == 1);
    bench.write(&clone, 40, 8, 7);
    bench.reactor.run(bench.reactor.sleep(Duration::from_hours(1))).unwrap();
    assert_eq!((clone.status().hydrated, clone.status().counts.failed), (13, 1));
}

#[test]
fn a_source_that_is_gone_is_not_tried_for_ever() {
    let bench = Bench::of(8 * 5000);
    bench.source.fails.set(Status::IoError);
    let clone = bench.open("0 2 hydration_batch_size 16");
    bench.reactor.run(bench.reactor.sleep(Duration::from_hours(1))).unwrap();
    let failed = clone.status().counts.failed;
    assert!((1025..1025 + 64).contains(&failed), "{failed}");
    bench.source.fails.set(Status::Ok);
    assert_eq!(clone.message(&["enable_hydration"]), Ok(()));
    bench.until(&clone, complete);
}

#[test]
fn hydration_steps_back_while_requests_are_slow() {
    let time = |slow: bool| {
        let bench = Bench::of(8 * 500);
        let clone = bench.open("0 4 hydration_batch_size 4 hydration_rate 2048000");
        let slow_reads = async {
            while slow && clone.status().hydrated < 500 {
                clone.hydration.request_ended(Duration::from_millis(50), bench.reactor.now());
                bench.reactor.sleep(Duration::from_millis(20)).await;
            }
        };
        bench.reactor.run(Box::pin(slow_reads)).unwrap();
        bench.until(&clone, complete);
        bench.reactor.now()
    };
    let (alone, loaded) = (time(false), time(true));
    assert!(loaded > alone + Duration::from_secs(5), "{alone:?} alone, {loaded:?} beside slow requests");
}

#[test]
fn closing_stops_hydration_and_keeps_what_was_done() {
    let mut bench = Bench::of(8 * 500);
    let clone = bench.open("0 2 hydration_rate 40960");
    bench.until(&clone, |status| status.hydrated > 20);
    assert_eq!(bench.close(&clone), Status::Ok);
    let hydrated = clone.status().hydrated;
    bench.kill();
    let clone = bench.still();
    assert_eq!(clone.status().hydrated, hydrated);
    assert_eq!(clone.sectors().0, 4000);
}
