//! Waiting uses no CPU time, whatever is waited for.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{HeapMemory, Segments};
use forebay_reactor::mailbox::Mailbox;
use forebay_reactor::{Backend, Part, Reactor, Threads, Uring};
use rustix::time::{ClockId, clock_gettime};

fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap()
}

/// CPU time and calls into the backend while a socket, a mailbox and a timer are waited for.
fn second_of_waiting(backend: Box<dyn Backend>) -> (Duration, u64) {
    let reactor = Reactor::new(backend);
    let (_post, mut mailbox) = Mailbox::<u32>::new(&reactor, 1).unwrap();
    assert!(reactor.spawn(async move {
        mailbox.receive().await;
    }));
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let ours: Rc<OwnedFd> = Rc::new(ours.into());
    let segments = Segments::whole(Box::new(HeapMemory::new(4096, 512)), 4096).unwrap();
    let _waiting = reactor.receive(&ours, vec![Part { segments, skip: 0, bytes: 4096 }]);
    reactor.turn(false).unwrap();
    let (cpu, enters) = (cpu_time(), reactor.counts().enters);
    reactor.run(reactor.sleep(Duration::from_secs(1))).unwrap();
    (cpu_time().saturating_sub(cpu), reactor.counts().enters - enters)
}

#[test]
fn an_idle_second_costs_next_to_no_cpu_time() {
    for backend in [Box::new(Uring::new().unwrap()) as Box<dyn Backend>, Box::new(Threads::new().unwrap())] {
        let name = backend.name();
        let (cpu, enters) = second_of_waiting(backend);
        println!("{name}: {cpu:?} of CPU time, {enters} calls");
        assert!(cpu < Duration::from_millis(50) && enters < 5, "{name}: {cpu:?}, {enters} calls");
    }
}
