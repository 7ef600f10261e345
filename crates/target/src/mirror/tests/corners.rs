//! What meets in the middle: copies, repairs and errors while something else is under way.

use super::*;

/// Opens without requests; the error.
fn refused(rig: &Rig, setup: Setup) -> String {
    let opened = rig.reactor.run(open(&rig.reactor, &BufferPool::default(), setup)).unwrap();
    let error = opened.err().map(|error| error.to_string()).unwrap_or_default();
    rig.reactor.clear();
    error
}

#[test]
fn a_log_that_knows_of_legs_behind_is_refused_with_another_number_of_legs() {
    let rig = Rig::new(3);
    let fewer = |sync| {
        let mut setup = rig.setup(true, sync, KEEP);
        setup.legs.pop();
        setup
    };
    rig.run(rig.setup(true, Sync::None, KEEP), async |mirror| {
        rig.legs[0].fails.set(Status::IoError);
        assert_eq!(put(mirror, 3, 5).await, Status::Ok);
    });
    rig.legs[0].fails.set(Status::Ok);
    let before = rig.log.bytes.borrow().clone();
    let error = refused(&rig, fewer(Sync::AsLogged));
    assert!(error.contains("3 legs") && error.contains("0 lacks") && error.contains("`sync`"), "{error:?}");
    assert_eq!(*rig.log.bytes.borrow(), before, "nothing was written");
    rig.run(rig.setup(true, Sync::AsLogged, KEEP), async |mirror| {
        synced(mirror).await;
        mirror.reactor.sleep(Duration::from_secs(3)).await;
        assert_eq!(rig.logged(), (0xFF, 9), "the record is there, and everything is clean");
    });
    rig.run(fewer(Sync::AsLogged), async |mirror| assert!(mirror.is_in_sync()));
}

#[test]
fn sync_copies_everything_although_the_log_is_clean() {
    let rig = Rig::new(2);
    rig.run(rig.setup(true, Sync::None, KEEP), async |mirror| {
        assert_eq!(put(mirror, 3, 5).await, Status::Ok);
        assert_eq!(mirror.close().await, Status::Ok);
    });
    assert_eq!(rig.logged(), (0xFF, 8));
    rig.fill(1, 9);
    rig.run(rig.setup(true, Sync::All, KEEP), async |mirror| {
        assert_eq!((mirror.status().in_sync, rig.logged().0), (0, 0));
        synced(mirror).await;
        assert!(rig.equal() && rig.sector(1, 3) == 5);
    });
}

#[test]
fn a_write_does_not_wait_for_the_rate_at_which_its_region_is_copied() {
    let rig = Rig::new(2);
    rig.fill(0, 1);
    // After the first copy of everything the next one waits for a minute.
    let features = Features { resync_rate: 512, ..KEEP };
    rig.run(rig.setup(true, Sync::AsLogged, features), async |mirror| {
        synced(mirror).await;
        rig.legs[1].fails.set(Status::IoError);
        assert_eq!(put(mirror, 3, 5).await, Status::Ok);
        rig.legs[1].fails.set(Status::Ok);
        mirror.revive();
        mirror.reactor.sleep(Duration::from_secs(1)).await;
        let began = mirror.reactor.now();
        assert_eq!(put(mirror, 4, 6).await, Status::Ok);
        let took = mirror.reactor.now().saturating_sub(began);
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert!(!mirror.is_in_sync(), "it waits for the rate");
        synced(mirror).await;
        assert!(rig.equal() && rig.sector(1, 3) == 5 && rig.sector(1, 4) == 6);
        assert!(mirror.reactor.now().saturating_sub(began) > Duration::from_secs(20), "the rate holds");
    });
}

#[test]
fn a_repair_is_on_the_log_before_anything_is_copied() {
    let rig = Rig::new(2);
    rig.run(rig.setup(true, Sync::None, KEEP), async |mirror| {
        rig.legs[1].bytes.borrow_mut()[512 * 17] = 1;
        assert_eq!(mirror.scrub(true).await.differing, 1);
        assert_eq!(rig.logged().0, 0b1111_1011, "a crash now does not forget it");
    });
    rig.run(rig.setup(true, Sync::AsLogged, KEEP), async |mirror| {
        synced(mirror).await;
        assert!(rig.equal());
        mirror.reactor.sleep(Duration::from_secs(2)).await;
        assert_eq!(rig.logged().0, 0xFF);
    });
}

#[test]
fn a_repair_leaves_alone_what_the_source_cannot_read() {
    let rig = Rig::new(3);
    rig.run(rig.setup(true, Sync::None, KEEP), async |mirror| {
        rig.legs[0].bad_sector.set(Some(17));
        rig.legs[1].bytes.borrow_mut()[512 * 17] = 1;
        let report = mirror.scrub(true).await;
        assert_eq!((report.differing, report.unread), (1, SECTORS));
        mirror.reactor.sleep(Duration::from_secs(3)).await;
        assert!(mirror.is_in_sync(), "nothing says which of the others is right");
        assert_eq!((rig.sector(1, 17), rig.sector(2, 17)), (1, 0));
    });
}

#[test]
fn legs_that_refuse_a_write_are_brought_up_to_date_by_themselves() {
    let rig = Rig::new(2);
    rig.run(rig.setup(true, Sync::None, KEEP), async |mirror| {
        mirror.reactor.sleep(Duration::from_secs(1)).await;
        rig.legs[1].hold.set(true);
        let written = call(&**mirror, write(3, &[5; 512]));
        mirror.reactor.sleep(Duration::from_millis(1)).await;
        rig.legs[1].hold.set(false);
        rig.legs[1].fails.set(Status::Unsupported);
        rig.legs[1].end_held(0);
        rig.legs[1].fails.set(Status::Ok);
        assert_eq!(written.await.status(), Status::Unsupported);
        mirror.reactor.sleep(Duration::from_secs(3)).await;
        assert_eq!(mirror.status().line(), "2 leg0 leg1 8/8 1 AA 3 disk log A");
        assert!(rig.equal());
    });
}

#[test]
fn a_write_whose_failure_became_known_while_the_log_was_told_is_not_held() {
    let rig = Rig::new(2);
    let features = Features { keep_log: false, ..KEEP };
    rig.run(rig.setup(true, Sync::None, features), async |mirror| {
        assert_eq!(put(mirror, 3, 4).await, Status::Ok);
        rig.log.hold.set(true);
        rig.legs[0].fails.set(Status::IoError);
        let written = call(&**mirror, write(3, &[5; 512]));
        mirror.reactor.sleep(Duration::from_millis(1)).await;
        assert_eq!(rig.log.held(), 1, "the log is told of the new source");
        mirror.release();
        rig.log.hold.set(false);
        rig.log.end_held(0);
        mirror.reactor.sleep(Duration::from_millis(1)).await;
        assert_eq!(mirror.status().held, 0);
        assert_eq!(written.await.status(), Status::Ok);
    });
}

#[test]
fn a_region_that_cannot_be_read_does_not_hold_up_its_neighbours() {
    let rig = Rig::new(2);
    rig.fill(0, 7);
    rig.legs[0].bad_sector.set(Some(20));
    rig.run(rig.setup(true, Sync::AsLogged, KEEP), async |mirror| {
        mirror.reactor.sleep(Duration::from_secs(30)).await;
        assert_eq!(mirror.status().in_sync, 7);
        rig.legs[0].bad_sector.set(None);
        synced(mirror).await;
        assert!(rig.equal());
    });
}

#[test]
fn a_suspended_mirror_holds_requests_and_copies_nothing() {
    let rig = Rig::new(2);
    rig.run(rig.setup(true, Sync::None, KEEP), async |mirror| {
        rig.legs[1].fails.set(Status::IoError);
        assert_eq!(put(mirror, 3, 5).await, Status::Ok);
        rig.legs[1].fails.set(Status::Ok);
        assert_eq!(mirror.suspend().await, Status::Ok);
        mirror.revive();
        let held = call(&**mirror, write(30, &[6; 512]));
        for disk in [&rig.legs[0], &rig.legs[1], &rig.log] {
            disk.take_seen();
        }
        mirror.reactor.sleep(Duration::from_secs(9)).await;
        assert!(!mirror.is_in_sync() && rig.sector(0, 30) == 0);
        let seen = [&rig.legs[0], &rig.legs[1], &rig.log].map(|disk| disk.take_seen().len());
        assert_eq!(seen, [0, 0, 0]);
        mirror.resume();
        assert_eq!(held.await.status(), Status::Ok);
        synced(mirror).await;
        assert!(rig.equal() && rig.sector(1, 30) == 6);
    });
}

#[test]
fn a_suspend_waits_for_the_piece_of_a_scrub_and_the_scrub_for_the_resume() {
    let rig = Rig::new(2);
    rig.run(rig.setup(true, Sync::None, KEEP), async |mirror| {
        let reports = Rc::new(Cell::new(0));
        let scrub = || {
            let (scrubbing, told) = (Rc::clone(mirror), Rc::clone(&reports));
            assert!(mirror.reactor.spawn(async move { told.set(told.get() + scrubbing.scrub(false).await.compared) }));
        };
        rig.legs[0].hold.set(true);
        scrub();
        mirror.reactor.sleep(Duration::from_millis(1)).await;
        assert_eq!(rig.legs[0].held(), 1);
        let suspended = Rc::new(Cell::new(false));
        let (suspending, told) = (Rc::clone(mirror), Rc::clone(&suspended));
        assert!(mirror.reactor.spawn(async move { told.set(suspending.suspend().await.is_ok()) }));
        mirror.reactor.sleep(Duration::from_millis(100)).await;
        assert_eq!(rig.legs[0].held(), 1, "nothing is flushed before the piece is over");
        rig.legs[0].hold.set(false);
        rig.legs[0].end_held(0);
        mirror.reactor.sleep(Duration::from_millis(100)).await;
        assert!(suspended.get());
        assert_eq!(reports.get(), SECTORS);

        rig.legs.iter().for_each(|leg| drop(leg.take_seen()));
        scrub();
        mirror.reactor.sleep(Duration::from_secs(9)).await;
        assert!(rig.legs.iter().all(|leg| leg.take_seen().is_empty()));
        mirror.resume();
        mirror.reactor.sleep(Duration::from_secs(1)).await;
        assert_eq!(reports.get(), 2 * SECTORS);
    });
}

#[test]
fn a_close_waits_for_the_piece_of_a_scrub_and_keeps_what_it_has_found() {
    let rig = Rig::new(2);
    rig.fill(1, 7);
    rig.run(rig.setup(true, Sync::None, KEEP), async |mirror| {
        rig.legs[0].hold.set(true);
        let scrubbing = Rc::clone(mirror);
        assert!(mirror.reactor.spawn(async move { drop(scrubbing.scrub(true).await) }));
        mirror.reactor.sleep(Duration::from_millis(1)).await;
        assert_eq!(rig.legs[0].held(), 1);
        let (closing, closed) = (Rc::clone(mirror), Rc::new(Cell::new(false)));
        let told = Rc::clone(&closed);
        assert!(mirror.reactor.spawn(async move { told.set(closing.close().await.is_ok()) }));
        mirror.reactor.sleep(Duration::from_secs(1)).await;
        assert_eq!((rig.legs[0].held(), closed.get()), (1, false), "nothing is flushed before the piece is over");
        rig.legs[0].hold.set(false);
        rig.legs[0].end_held(0);
        mirror.reactor.sleep(Duration::from_secs(1)).await;
        assert!(closed.get());
        assert_eq!(rig.logged().0, 0, "every region differs, and is copied by whoever opens it next");
    });
}
