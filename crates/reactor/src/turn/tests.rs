//! The turn over a scripted backend: what leaves when, and what becomes of each kind of answer.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use forebay_block::{Extent, Flags, HeapMemory, Sector, SectorCount, Segments, call_with};

use super::*;
use crate::request::Request;

/// What the backend was asked: kind, first byte, bytes, and how many bios.
type Sent = (Kind, u64, u64, usize);
/// Answers a request now, or keeps it.
type Answer = Box<dyn FnMut(&Request) -> Option<i32>>;

#[derive(Default)]
struct Tape {
    /// One list per call that carried requests.
    sent: RefCell<Vec<Vec<Sent>>>,
    /// Calls of any kind.
    enters: Cell<u32>,
    clock: Cell<Duration>,
    /// Requests that were not answered yet.
    kept: RefCell<VecDeque<Tag>>,
    answer: RefCell<Option<Answer>>,
}

struct Script(Rc<Tape>);

impl Backend for Script {
    fn name(&self) -> &'static str {
        "script"
    }
    fn now(&self) -> Duration {
        self.0.clock.get()
    }
    fn attach(&mut self, _device: DeviceId, _file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        Ok(())
    }
    fn offer_memory(&mut self, _base: usize, _bytes: usize) {}

    fn enter(&mut self, requests: &Requests, batch: &[Tag], done: &mut Vec<Done>, wait: Wait) -> io::Result<()> {
        self.0.enters.set(self.0.enters.get() + 1);
        let list = |&tag: &Tag| {
            let request = requests.get(tag);
            (request.kind, request.offset, request.bytes, request.bios.len())
        };
        if !batch.is_empty() {
            self.0.sent.borrow_mut().push(batch.iter().map(list).collect());
        }
        self.0.kept.borrow_mut().extend(batch);
        let mut answer = self.0.answer.borrow_mut();
        self.0.kept.borrow_mut().retain(|&tag| {
            let request = requests.get(tag);
            let whole = i32::try_from(request.pieces().map(forebay_block::BioVec::bytes).sum::<u32>()).unwrap();
            let result = answer.as_mut().map_or(Some(whole), |answer| answer(request));
            done.extend(result.map(|result| Done { tag, result }));
            result.is_none()
        });
        if let Wait::Until(deadline) = wait
            && done.is_empty()
        {
            let deadline = deadline.expect("nothing will ever happen: the reactor would sleep for ever");
            self.0.clock.set(self.0.clock.get().max(deadline));
        }
        Ok(())
    }
}

struct Bed {
    reactor: Reactor,
    tape: Rc<Tape>,
    device: DeviceId,
}

fn bed_with(limits: Limits, merging: bool) -> Bed {
    let tape = Rc::<Tape>::default();
    let reactor = Reactor::new(Box::new(Script(Rc::clone(&tape))));
    let device = reactor.attach(Attachment { name: "disk".into(), limits, file: None, inline: None, merging }).unwrap();
    Bed { reactor, tape, device }
}

fn bed() -> Bed {
    bed_with(Limits { max_segments: 64, ..Limits::unlimited() }, true)
}

fn payload(bytes: u32) -> Rc<Segments> {
    Segments::whole(Box::new(HeapMemory::new(bytes as usize, 512)), bytes).unwrap()
}

fn write(sector: u64, bytes: u32) -> Bio {
    Bio::write(Sector(sector), payload(bytes), 0, bytes)
}

const WRITE: Kind = Kind::Write { fua: false };

impl Bed {
    fn submit(&self, bio: Bio) -> forebay_block::bio::Call {
        call_with(bio, |bio| self.reactor.submit(self.device, bio))
    }

    fn answer(&self, answer: impl FnMut(&Request) -> Option<i32> + 'static) {
        *self.tape.answer.borrow_mut() = Some(Box::new(answer));
    }

    fn sent(&self) -> Vec<Vec<Sent>> {
        self.tape.sent.take()
    }

    /// Waits for all, in order, and gives their results.
    fn statuses(&self, calls: impl IntoIterator<Item = forebay_block::bio::Call>) -> Vec<Status> {
        let calls: Vec<_> = calls.into_iter().collect();
        let all = async {
            let mut statuses = Vec::new();
            for call in calls {
                statuses.push(call.await.status());
            }
            statuses
        };
        self.reactor.run(all).unwrap()
    }
}

#[test]
fn a_lone_bio_leaves_in_the_turn_that_submitted_it() {
    let bed = bed();
    let call = bed.submit(write(8, 4096));
    bed.reactor.turn(false).unwrap();
    assert_eq!(bed.sent(), [[(WRITE, 4096, 4096, 1)]]);
    // Likewise when a job submits it while it is polled.
    let reactor = bed.reactor.clone();
    let device = bed.device;
    assert!(bed.reactor.spawn(async move {
        call_with(write(16, 512), |bio| reactor.submit(device, bio)).await;
    }));
    bed.reactor.turn(false).unwrap();
    assert_eq!(bed.sent(), [[(WRITE, 8192, 512, 1)]]);
    assert_eq!(bed.statuses([call]), [Status::Ok]);
}

#[test]
fn neighbours_of_one_turn_leave_as_one_request_and_all_end() {
    let bed = bed();
    let calls = [8, 0, 16].map(|sector| bed.submit(write(sector, 4096)));
    assert_eq!(bed.statuses(calls), [Status::Ok; 3]);
    assert_eq!(bed.sent(), [[(WRITE, 0, 12_288, 3)]]);
    let counts = bed.reactor.device_counts(bed.device);
    assert_eq!((counts.bios, counts.bytes, counts.requests, counts.errors), (3, 12_288, 1, 0));
    assert_eq!(bed.reactor.counts().requests, 1);
}

#[test]
fn without_merging_each_request_leaves_by_a_call_of_its_own_and_those_of_other_devices_together() {
    let bed = bed_with(Limits::unlimited(), false);
    let attachment = Attachment { name: "other".into(), limits: Limits::unlimited(), file: None, inline: None, merging: true };
    let other = bed.reactor.attach(attachment).unwrap();
    let calls = [0, 8, 32]
        .map(|sector| [bed.submit(write(sector, 4096)), call_with(write(sector, 512), |bio| bed.reactor.submit(other, bio))]);
    assert_eq!(bed.statuses(calls.into_iter().flatten()), [Status::Ok; 6]);
    let alone = [(WRITE, 0, 4096, 1), (WRITE, 4096, 4096, 1), (WRITE, 16_384, 4096, 1)].map(|one| vec![one]);
    let together = vec![(WRITE, 0, 512, 1), (WRITE, 4096, 512, 1), (WRITE, 16_384, 512, 1)];
    assert_eq!(bed.sent(), [&alone[..], &[together]].concat());
    assert_eq!((bed.reactor.counts().enters, bed.reactor.counts().requests), (4, 6));
}

#[test]
fn a_merged_request_that_fails_is_retried_in_parts_and_only_the_bio_concerned_fails() {
    let bed = bed();
    let bad = 4096..4608;
    bed.answer(move |request| {
        let touches = request.offset < bad.end && bad.start < request.offset + request.bytes;
        Some(if touches { -libc::EIO } else { i32::try_from(request.bytes).unwrap() })
    });
    let calls = [0, 8, 16].map(|sector| bed.submit(write(sector, 4096)));
    assert_eq!(bed.statuses(calls), [Status::Ok, Status::IoError, Status::Ok]);
    let parts = vec![(WRITE, 0, 4096, 1), (WRITE, 4096, 4096, 1), (WRITE, 8192, 4096, 1)];
    assert_eq!(bed.sent(), [vec![(WRITE, 0, 12_288, 3)], parts]);
    assert_eq!(bed.reactor.device_counts(bed.device).errors, 1);
}

#[test]
fn a_merged_request_that_comes_back_short_is_retried_in_parts() {
    let bed = bed();
    bed.answer(|request| Some(if request.bios.len() > 1 { 4096 } else { i32::try_from(request.bytes).unwrap() }));
    let calls = [0, 8].map(|sector| bed.submit(write(sector, 4096)));
    assert_eq!(bed.statuses(calls), [Status::Ok; 2]);
    assert_eq!(bed.sent().len(), 2);
}

#[test]
fn a_short_result_goes_on_where_it_stopped() {
    let bed = bed();
    let expected = payload(4096);
    let base = expected.vecs()[0].base() as usize;
    let mut seen = Vec::new();
    let trace = Rc::new(RefCell::new(Vec::new()));
    let list = Rc::clone(&trace);
    bed.answer(move |request| {
        let piece = request.pieces().next().unwrap();
        list.borrow_mut().push((request.offset, request.bytes, piece.base() as usize - base));
        seen.push(request.offset);
        // 1000 bytes are one sector and a part of the next, which counts as not done.
        Some([1000, 512, 3072][seen.len() - 1])
    });
    let call = bed.submit(Bio::read(Sector(2), expected, 0, 4096));
    assert_eq!(bed.statuses([call]), [Status::Ok]);
    assert_eq!(trace.take(), [(1024, 4096, 0), (1536, 3584, 512), (2048, 3072, 1024)]);
}

#[test]
fn a_result_without_progress_is_the_end_of_the_device() {
    let bed = bed();
    bed.answer(|request| Some(if request.offset == 0 { 512 } else { 0 }));
    let call = bed.submit(Bio::read(Sector(0), payload(4096), 0, 4096));
    assert_eq!(bed.statuses([call]), [Status::IoError]);
    assert_eq!(bed.sent().len(), 2);
}

#[test]
fn what_the_kernel_refuses_for_now_is_tried_again_and_given_up_in_the_end() {
    let bed = bed();
    let mut left = 5;
    bed.answer(move |request| {
        left -= 1;
        Some(if left > 0 { [-libc::EAGAIN, -libc::EINTR][left % 2] } else { i32::try_from(request.bytes).unwrap() })
    });
    let call = bed.submit(write(0, 4096));
    assert_eq!(bed.statuses([call]), [Status::Ok]);
    assert_eq!(bed.sent().len(), 5);
    bed.answer(|_| Some(-libc::EAGAIN));
    let call = bed.submit(write(0, 4096));
    assert_eq!(bed.statuses([call]), [Status::Again]);
    assert_eq!(bed.sent().len(), 101);
}

#[test]
fn each_errno_has_its_status() {
    let table = [
        (libc::ENOSPC, Status::NoSpace),
        (libc::EDQUOT, Status::NoSpace),
        (libc::EROFS, Status::ReadOnly),
        (libc::EBADF, Status::ReadOnly),
        (libc::EOPNOTSUPP, Status::Unsupported),
        (libc::ECANCELED, Status::Aborted),
        (libc::EIO, Status::IoError),
        (libc::EINVAL, Status::IoError),
    ];
    for (errno, status) in table {
        let bed = bed();
        bed.answer(move |_| Some(-errno));
        let call = bed.submit(Bio::discard(Extent::new(Sector(0), SectorCount(8))));
        assert_eq!(bed.statuses([call]), [status], "errno {errno}");
    }
}

#[test]
fn a_later_overlapping_write_leaves_only_after_the_earlier_one_is_done() {
    let bed = bed();
    bed.answer(|_| None);
    let mut calls = vec![bed.submit(write(0, 4096)), bed.submit(write(4, 4096))];
    bed.reactor.turn(false).unwrap();
    // Whatever comes after a waiting bio waits behind it.
    calls.push(bed.submit(write(100, 512)));
    bed.reactor.turn(false).unwrap();
    assert_eq!(bed.sent(), [[(WRITE, 0, 4096, 1)]]);
    bed.answer(|request| Some(i32::try_from(request.bytes).unwrap()));
    assert_eq!(bed.statuses(calls), [Status::Ok; 3]);
    assert_eq!(bed.sent(), [[(WRITE, 2048, 4096, 1), (WRITE, 51_200, 512, 1)]]);
}

#[test]
fn a_bio_beyond_the_limits_is_split_and_ends_once_with_its_first_error() {
    let bed = bed_with(Limits { max_sectors: 4, ..Limits::unlimited() }, false);
    bed.answer(|request| Some(if request.offset == 2048 { -libc::EIO } else { i32::try_from(request.bytes).unwrap() }));
    let calls = [bed.submit(write(0, 5120)), bed.submit(write(100, 2048))];
    assert_eq!(bed.statuses(calls), [Status::IoError, Status::Ok]);
    let parts = [(WRITE, 0, 2048, 1), (WRITE, 2048, 2048, 1), (WRITE, 4096, 1024, 1), (WRITE, 51_200, 2048, 1)];
    assert_eq!(bed.sent(), parts.map(|part| [part]));
}

#[test]
fn memory_that_the_device_cannot_take_is_refused_and_not_inside_submit() {
    struct Ended(Cell<Option<Status>>);
    impl forebay_block::End for Ended {
        fn bio_ended(&self, bio: Bio, _token: u64) {
            self.0.set(Some(bio.status()));
        }
    }
    let bed = bed_with(Limits { memory_align: 512, ..Limits::unlimited() }, true);
    let memory = Segments::ranges(Box::new(HeapMemory::new(4096, 512)), &[(8, 512)]).unwrap();
    let ended = Rc::new(Ended(Cell::new(None)));
    let end: Rc<dyn forebay_block::End> = Rc::clone(&ended) as _;
    bed.reactor.submit(bed.device, Bio::write(Sector(0), memory, 0, 512).on_end(end, 0));
    assert_eq!(ended.0.get(), None);
    bed.reactor.turn(true).unwrap();
    assert_eq!((ended.0.get(), bed.sent().len()), (Some(Status::IoError), 0));
}

#[test]
fn fua_flush_discard_and_zeroes_go_out_as_such() {
    let bed = bed();
    let extent = Extent::new(Sector(8), SectorCount(8));
    let flags = Flags { fua: true, no_unmap: true, ..Flags::default() };
    let bios = [
        write(0, 512).with(flags),
        Bio::flush(),
        Bio::discard(extent),
        Bio::write_zeroes(Extent::new(Sector(16), SectorCount(8))).with(flags),
    ];
    assert_eq!(bed.statuses(bios.map(|bio| bed.submit(bio))), [Status::Ok; 4]);
    let mut kinds: Vec<_> = bed.sent().concat().into_iter().map(|sent| sent.0).collect();
    kinds.sort();
    let expected = [Kind::Write { fua: true }, Kind::Flush, Kind::Discard, Kind::WriteZeroes { no_unmap: true }];
    assert_eq!(kinds, expected);
}

#[test]
fn an_inline_device_is_done_without_the_backend() {
    struct Odd;
    impl Inline for Odd {
        fn execute(&self, bio: &Bio) -> Status {
            if bio.sector().0 % 16 == 8 { Status::NoSpace } else { Status::Ok }
        }
    }
    let bed = bed();
    let inline: Option<Rc<dyn Inline>> = Some(Rc::new(Odd));
    let attachment = Attachment { name: "odd".into(), limits: Limits::unlimited(), file: None, inline, merging: true };
    let odd = bed.reactor.attach(attachment).unwrap();
    let calls = [0, 8, 16].map(|sector| call_with(write(sector, 4096), |bio| bed.reactor.submit(odd, bio)));
    assert_eq!(bed.statuses(calls), [Status::Ok, Status::NoSpace, Status::Ok]);
    assert_eq!((bed.reactor.counts().enters, bed.reactor.device_counts(odd).requests), (0, 1));
}

#[test]
fn overlapping_bios_of_an_inline_device_run_in_order() {
    struct Trace(RefCell<Vec<u64>>);
    impl Inline for Trace {
        fn execute(&self, bio: &Bio) -> Status {
            self.0.borrow_mut().push(bio.bytes());
            Status::Ok
        }
    }
    let bed = bed();
    let trace = Rc::new(Trace(RefCell::default()));
    let inline: Option<Rc<dyn Inline>> = Some(Rc::clone(&trace) as _);
    let attachment = Attachment { name: "trace".into(), limits: Limits::unlimited(), file: None, inline, merging: true };
    let device = bed.reactor.attach(attachment).unwrap();
    let calls = [(8, 512), (0, 8192), (9, 1024)]
        .map(|(sector, bytes)| call_with(write(sector, bytes), |bio| bed.reactor.submit(device, bio)));
    assert_eq!(bed.statuses(calls), [Status::Ok; 3]);
    assert_eq!(trace.0.take(), [512, 8192, 1024]);
}

#[test]
fn timers_fire_in_the_order_of_their_deadlines_and_dropped_ones_do_not() {
    let bed = bed();
    let order = Rc::new(RefCell::new(Vec::new()));
    for millis in [30, 10, 20, 10] {
        let sleep = bed.reactor.sleep(Duration::from_millis(millis));
        let order = Rc::clone(&order);
        assert!(bed.reactor.spawn(async move {
            sleep.await;
            order.borrow_mut().push(millis);
        }));
    }
    drop(bed.reactor.sleep(Duration::from_millis(1)));
    bed.reactor.run(bed.reactor.sleep(Duration::from_millis(40))).unwrap();
    assert_eq!(order.take(), [10, 10, 20, 30]);
    assert_eq!(bed.reactor.now(), Duration::from_millis(40));
    assert_eq!(bed.tape.enters.get(), 4, "one call for each deadline, none for the dropped timer");
}

#[test]
fn a_timer_made_right_after_a_long_wait_counts_from_its_end() {
    let bed = bed();
    let both = async {
        bed.reactor.sleep(Duration::from_secs(10)).await;
        bed.reactor.sleep(Duration::from_secs(1)).await;
    };
    bed.reactor.run(both).unwrap();
    assert_eq!(bed.reactor.now(), Duration::from_secs(11));
}

#[test]
fn jobs_that_keep_giving_way_do_not_keep_completions_waiting() {
    let bed = bed();
    let stop = Rc::new(Cell::new(false));
    let seen = Rc::clone(&stop);
    assert!(bed.reactor.spawn(std::future::poll_fn(move |cx| {
        cx.waker().wake_by_ref();
        if seen.get() { Poll::Ready(()) } else { Poll::Pending }
    })));
    let call = bed.submit(write(0, 512));
    assert_eq!(bed.statuses([call]), [Status::Ok]);
    stop.set(true);
    bed.reactor.turn(false).unwrap();
}

#[test]
fn an_idle_reactor_waits_in_one_call() {
    let bed = bed();
    bed.reactor.run(bed.reactor.sleep(Duration::from_hours(1))).unwrap();
    assert_eq!(bed.tape.enters.get(), 1);
}

#[test]
fn clearing_aborts_what_has_not_left() {
    let bed = bed();
    bed.answer(|_| None);
    let calls = [bed.submit(write(0, 4096)), bed.submit(write(4, 4096))];
    bed.reactor.turn(false).unwrap();
    let queued = bed.submit(write(100, 512));
    bed.reactor.clear();
    let [in_flight, held] = calls;
    bed.answer(|request| Some(i32::try_from(request.bytes).unwrap()));
    assert_eq!(bed.statuses([queued, held, in_flight]), [Status::Aborted, Status::Aborted, Status::Ok]);
}

#[test]
fn an_engine_ends_with_its_last_handle_and_clearing_frees_what_its_own_jobs_hold() {
    let free = bed();
    let weak = free.reactor.downgrade();
    assert!(weak.upgrade().is_some());
    drop(free);
    assert!(weak.upgrade().is_none());

    let tied = bed();
    let weak = tied.reactor.downgrade();
    let (in_pool, in_task) = (tied.reactor.clone(), tied.reactor.clone());
    let pool = tied.reactor.job_pool(1, move |(): ()| {
        let held = in_pool.clone();
        async move { drop(held) }
    });
    assert!(tied.reactor.spawn(async move {
        std::future::pending::<()>().await;
        drop(in_task);
    }));
    tied.reactor.clear();
    drop((tied, pool));
    assert!(weak.upgrade().is_none());
}
