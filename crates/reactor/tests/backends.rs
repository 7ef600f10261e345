//! The real backends do the same: every behaviour on `io_uring`, on `io_uring` with each optional
//! ability switched off, and on threads.

mod common;

use forebay_reactor::Threads;
use forebay_reactor::uring::{Features, Uring};

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
