//! The real backends do the same: every behaviour on `io_uring`, on `io_uring` with each optional
//! ability switched off, and on threads.

mod common;

use forebay_reactor::uring::{Features, Uring};
use forebay_reactor::{BufferPool, Reactor, Threads};

#[test]
fn uring_with_all_that_this_kernel_has() {
    common::behaves(&|| Box::new(Uring::new().unwrap()));
}

#[test]
fn uring_without_each_optional_ability_and_without_all() {
    for (name, feature) in Features::EACH {
        println!("without {name}");
        let wanted = Features::ALL.without(feature);
        common::behaves(&|| {
            let ring = Uring::with_features(wanted).unwrap();
            assert!(!ring.features().has(feature), "{name} is switched off");
            Box::new(ring)
        });
    }
    common::behaves(&|| Box::new(Uring::with_features(Features::NONE).unwrap()));
}

#[test]
fn threads() {
    common::behaves(&|| Box::new(Threads::new().unwrap()));
}

#[test]
fn registered_memory_is_made_of_huge_pages_where_the_system_has_them() {
    let page_bytes = |reactor: &Reactor| BufferPool::new(reactor).take(1 << 20).segments().page_bytes();
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let huge = enabled.contains("[madvise]") || enabled.contains("[always]");
    let ring = Reactor::new(Box::new(Uring::new().unwrap()));
    assert_eq!(page_bytes(&ring), if huge { 2 << 20 } else { 4096 }, "{enabled}");
    // Where nothing is registered, nothing is touched before its first use, and nothing known.
    let unregistered = Uring::with_features(Features::ALL.without(Features::BUFFERS)).unwrap();
    assert_eq!(page_bytes(&Reactor::new(Box::new(unregistered))), 4096);
    assert_eq!(page_bytes(&Reactor::new(Box::new(Threads::new().unwrap()))), 4096);
}
