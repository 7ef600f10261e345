//! Memory that the kernel may still write to is never freed and never used for anything else, whatever
//! becomes of those who asked. The slow device is a pipe: a read of it lasts until somebody writes.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot go on ends, and forgets on purpose")]

use std::future::Future;
use std::io::{PipeWriter, Write};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_block::bio::Call;
use forebay_block::{Bio, BvecIter, HeapMemory, Limits, Sector, Segments, bvec, call_with};
use forebay_reactor::uring::Features;
use forebay_reactor::{Attachment, BufferPool, DeviceId, Reactor, Uring};

struct Bed {
    reactor: Reactor,
    device: DeviceId,
    writer: PipeWriter,
}

impl Bed {
    fn new(features: Features) -> Self {
        let reactor = Reactor::new(Box::new(Uring::with_features(features).unwrap()));
        let (reader, writer) = std::io::pipe().unwrap();
        let file = Some(Rc::new(reader.into()));
        let limits = Limits::unlimited();
        let device = reactor.attach(Attachment { name: "pipe".into(), limits, file, inline: None, merging: true }).unwrap();
        Self { reactor, device, writer }
    }

    /// Starts a read that the kernel cannot answer yet.
    fn start(&self, segments: Rc<Segments>) -> Call {
        let bytes = segments.bytes();
        let call = call_with(Bio::read(Sector(0), segments, 0, bytes), |bio| self.reactor.submit(self.device, bio));
        for _ in 0..3 {
            self.reactor.turn(false).unwrap();
        }
        call
    }

    fn answer(&mut self, byte: u8) {
        self.writer.write_all(&[byte; 4096]).unwrap();
    }
}

fn both_ways() -> [Features; 2] {
    [Features::ALL, Features::NONE]
}

fn content(segments: &Segments) -> Vec<u8> {
    let mut bytes = vec![0; segments.bytes() as usize];
    bvec::copy_out(segments, BvecIter::over(Sector(0), segments, 0, segments.bytes()), &mut bytes);
    bytes
}

fn wait_until_gone(reactor: &Reactor, memory: &Weak<Segments>) {
    while memory.strong_count() > 0 {
        reactor.turn(true).unwrap();
    }
}

/// One segment of 1024 bytes and one of 3072.
fn memory() -> Rc<Segments> {
    Segments::ranges(Box::new(HeapMemory::new(8192, 4096)), &[(4096, 1024), (0, 3072)]).unwrap()
}

#[test]
fn a_forgotten_or_dropped_future_frees_nothing_that_the_kernel_may_still_write() {
    for features in both_ways() {
        for forget in [true, false] {
            let mut bed = Bed::new(features);
            let segments = memory();
            let watch = Rc::downgrade(&segments);
            let future = bed.start(segments);
            if forget {
                std::mem::forget(future);
            } else {
                drop(future);
            }
            for _ in 0..10 {
                bed.reactor.turn(false).unwrap();
                assert_eq!(watch.strong_count(), 1, "the request in flight has the memory");
            }
            bed.answer(7);
            // Whoever looks when the kernel is done finds what it wrote, in memory that was still there.
            let kept = watch.upgrade().unwrap();
            while Rc::strong_count(&kept) > 1 && content(&kept) != [7; 4096] {
                bed.reactor.turn(true).unwrap();
            }
            assert_eq!(content(&kept), [7; 4096]);
            drop(kept);
            if !forget {
                wait_until_gone(&bed.reactor, &watch);
            }
        }
    }
}

#[test]
fn a_pool_gives_memory_out_again_only_when_the_kernel_is_done_with_it() {
    for features in both_ways() {
        let mut bed = Bed::new(features);
        let pool = BufferPool::new(&bed.reactor);
        let buffer = pool.take(4096);
        let address = buffer.segments().vecs()[0].base();
        let future = bed.start(Rc::clone(buffer.segments()));
        drop(future);
        drop(buffer);
        let others: Vec<_> = (0..100).map(|_| pool.take(4096)).collect();
        assert!(others.iter().all(|other| other.segments().vecs()[0].base() != address));
        drop(others);
        assert_eq!(pool.bytes_out(), 4096);
        bed.answer(1);
        while pool.bytes_out() > 0 {
            bed.reactor.turn(true).unwrap();
        }
        let again: Vec<_> = (0..101).map(|_| pool.take(4096)).collect();
        assert!(again.iter().any(|other| other.segments().vecs()[0].base() == address));
    }
}

#[test]
fn a_reactor_that_goes_waits_for_the_kernel_to_let_go_of_memory() {
    for features in both_ways() {
        let Bed { reactor, device, mut writer } = Bed::new(features);
        let segments = memory();
        let watch = Rc::downgrade(&segments);
        let mut future = pin!(call_with(Bio::read(Sector(0), segments, 0, 4096), |bio| reactor.submit(device, bio)));
        reactor.turn(false).unwrap();
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let answered = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            writer.write_all(&[9; 4096]).unwrap();
        });
        let kept = watch.upgrade().unwrap();
        drop(reactor);
        // The backend came back only when the read was over.
        assert_eq!(content(&kept), [9; 4096]);
        answered.join().unwrap();
        drop(kept);
        // The bio was given up without an answer, and with it the last hold on the memory.
        assert!(matches!(future.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(bio) if !bio.status().is_ok()));
        assert_eq!(watch.strong_count(), 0);
    }
}
