//! When and in which order delayed bios go on.

use super::*;
use crate::below::testing::{Disk, Ends, JumpingClock, call, content, extent, read, told, write};
use forebay_block::{Sector, Status};

fn reactor() -> Reactor {
    Reactor::new(Box::new(JumpingClock::default()))
}

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn leg(disk: &Rc<Disk>, delay: Duration) -> Leg {
    Leg { below: disk.clone(), delay }
}

#[test]
fn each_class_waits_for_its_own_time_on_its_own_target() {
    let reactor = reactor();
    let disks = [Disk::new(64), Disk::new(64), Disk::new(64)];
    let legs = Legs { read: leg(&disks[0], ms(10)), write: leg(&disks[1], ms(20)), flush: leg(&disks[2], ms(35)) };
    let delay = Delay::new(reactor.clone(), legs).unwrap();
    let took = |bio: Bio| {
        let before = reactor.now();
        let bio = reactor.run(call(&delay, bio)).unwrap();
        assert_eq!(bio.status(), Status::Ok);
        reactor.now().checked_sub(before).unwrap()
    };
    let (bio, bytes) = read(8, 1);
    assert_eq!(took(bio), ms(10));
    assert_eq!(content(bytes), [0; 512]);
    assert_eq!(took(write(8, &[3; 512])), ms(20));
    assert_eq!(took(Bio::discard(extent(0, 8))), ms(20));
    assert_eq!(took(Bio::write_zeroes(extent(0, 8))), ms(20));
    assert_eq!(took(Bio::flush()), ms(35));
    assert_eq!(disks.map(|disk| disk.take_seen().len()), [1, 3, 1]);
}

#[test]
fn holes_are_those_of_the_target_that_reads_go_to_and_told_without_delay() {
    let disks = [Disk::new(64), Disk::new(64)];
    disks[0].bytes.borrow_mut()[..512].fill(1);
    let legs = Legs { read: leg(&disks[0], ms(10)), write: leg(&disks[1], ms(20)), flush: leg(&disks[1], ms(20)) };
    let delay = Delay::new(reactor(), legs).unwrap();
    assert_eq!(told(&delay, extent(0, 64)), [(1, false), (63, true)]);
}

#[test]
fn equal_delays_keep_the_order_and_no_delay_overtakes() {
    let reactor = reactor();
    let disk = Disk::new(64);
    let by: DelayBy = Box::new(|_, extent| match extent.start.0 {
        0..10 => ms(50),
        10..20 => ms(5),
        _ => Duration::ZERO,
    });
    let delay = Delay::by(reactor.clone(), disk.clone(), by).unwrap();
    let ends = Rc::new(Ends::default());
    for sector in [3, 2, 12, 1, 11, 40, 9] {
        ends.submit(&delay, write(sector, &[1; 512]), sector);
    }
    assert_eq!(delay.waiting(), 6);
    reactor.run(reactor.sleep(ms(60))).unwrap();
    let order: Vec<u64> = ends.0.take().iter().map(|(token, _)| *token).collect();
    assert_eq!(order, [40, 12, 11, 3, 2, 1, 9]);
    assert_eq!((delay.waiting(), disk.take_seen().len()), (0, 7));
}

#[test]
fn a_bio_that_comes_while_another_waits_is_due_by_its_own_clock() {
    let reactor = reactor();
    let disk = Disk::new(64);
    let delay = Delay::new(reactor.clone(), Legs::all(leg(&disk, ms(30)))).unwrap();
    let ends = Rc::new(Ends::default());
    ends.submit(&delay, write(0, &[1; 512]), 0);
    reactor.run(reactor.sleep(ms(20))).unwrap();
    ends.submit(&delay, write(1, &[1; 512]), 1);
    reactor.run(reactor.sleep(ms(11))).unwrap();
    assert_eq!(ends.0.borrow().len(), 1);
    reactor.run(reactor.sleep(ms(20))).unwrap();
    assert_eq!(ends.0.borrow().len(), 2);
}

#[test]
fn an_earlier_bio_moves_the_timer_forward() {
    let reactor = reactor();
    let disk = Disk::new(64);
    let by: DelayBy = Box::new(|op, _| if op == Op::Flush { ms(1) } else { ms(1000) });
    let delay = Delay::by(reactor.clone(), disk.clone(), by).unwrap();
    let ends = Rc::new(Ends::default());
    ends.submit(&delay, write(0, &[1; 512]), 0);
    reactor.run(reactor.sleep(ms(10))).unwrap();
    let before = reactor.now();
    drop(reactor.run(call(&delay, Bio::flush())).unwrap());
    assert_eq!(reactor.now().checked_sub(before), Some(ms(1)));
    assert_eq!(ends.0.borrow().len(), 0);
}

#[test]
fn what_waits_when_the_target_goes_ends_aborted() {
    let reactor = reactor();
    let disk = Disk::new(64);
    let delay = Delay::new(reactor.clone(), Legs::all(leg(&disk, ms(30)))).unwrap();
    let ends = Rc::new(Ends::default());
    ends.submit(&delay, write(0, &[1; 512]), 7);
    reactor.run(reactor.sleep(ms(1))).unwrap();
    drop(delay);
    assert_eq!(ends.0.take(), [(7, Status::Aborted)]);
    reactor.run(reactor.sleep(ms(60))).unwrap();
    assert_eq!(disk.take_seen(), []);
    assert_eq!(Rc::strong_count(&disk), 1, "nothing of the target is left in the reactor");
}

#[test]
fn targets_of_different_size_are_refused() {
    let legs = Legs { write: leg(&Disk::new(63), ms(1)), ..Legs::all(leg(&Disk::new(64), ms(1))) };
    let error = Delay::new(reactor(), legs).err().unwrap().to_string();
    assert_eq!(error, "delay: sectors 0+64 do not fit the 63 sectors below: choose a smaller length or offset");
}

#[test]
fn a_bio_behind_a_linear_is_delayed_where_it_lands() {
    let reactor = reactor();
    let disk = Disk::new(64);
    let by: DelayBy = Box::new(|_, extent| if extent.start >= Sector(32) { ms(9) } else { Duration::ZERO });
    let delay = Rc::new(Delay::by(reactor.clone(), disk, by).unwrap());
    let linear = crate::linear::Linear::new(delay, Sector(32), SectorCount(32)).unwrap();
    let before = reactor.now();
    drop(reactor.run(call(&linear, write(0, &[1; 512]))).unwrap());
    assert_eq!(reactor.now().checked_sub(before), Some(ms(9)));
}
