//! An origin that fails in part or altogether: nothing else waits for it, nothing grows without end.

use std::rc::Rc;

use forebay_block::Op;
use forebay_target::cache::MessageError;
use forebay_target::cache::options::{Full, Order, Overwrite};

use crate::support::rig::Rig;

#[test]
fn one_bad_block_does_not_hold_up_the_writeback_of_others() {
    for order in [Order::Fifo, Order::Sweep] {
        let mut rig = Rig::new(64 * 4096 + 8192, 4 << 20, 4096);
        rig.options.order = Some(order);
        rig.options.full = Some(Full::Wait);
        rig.origin.borrow_mut().bad.push((Op::Write, 0));
        rig.run(async |life| {
            assert!(life.write(0, 1, 9).await.is_ok());
            let began = life.reactor.now();
            for round in 1..20 {
                assert!(life.write(round * 40, 40, 1).await.is_ok());
            }
            let took = life.reactor.now().saturating_sub(began);
            assert!(took.as_millis() < 500, "{order:?}: writers waited {took:?} for a block that cannot leave");
            assert_eq!(life.read(0, 1).await, [9]);
        });
    }
}

#[test]
fn an_origin_that_is_gone_costs_a_few_entries_and_a_drain_says_so() {
    let rig = Rig::new(4096 * 512 + (1 << 17), 4 << 20, 512);
    for sector in 0..8192 {
        rig.origin.borrow_mut().bad.push((Op::Write, sector));
    }
    rig.run(async |life| {
        assert!(life.write(0, 4000, 1).await.is_ok());
        assert_eq!(life.cache.message(&["flush"]).await, Err(MessageError::Io));
        let status = life.status();
        assert!(status.quarantined > 0 && status.dirty == 4000, "{status:?}");
        assert!(status.memory_bytes < 64 << 10, "{} bytes for what cannot leave", status.memory_bytes);
        assert!(rig.origin.borrow().seen.len() < 600, "{} requests to an origin that is gone", rig.origin.borrow().seen.len());
    });
    let healed = Rc::clone(&rig.origin);
    healed.borrow_mut().bad.clear();
    rig.run(async |life| assert_eq!(life.cache.message(&["flush"]).await, Ok(())));
}

#[test]
fn the_queue_of_ages_does_not_grow_with_the_number_of_writes() {
    let mut rig = Rig::new(1024 * 4096 + 32_768, 4 << 20, 4096);
    rig.options.order = Some(Order::Fifo);
    rig.options.overwrite = Some(Overwrite::New);
    rig.run(async |life| {
        for write in 0..20_000 {
            assert!(life.write(write * 7 % 64, 1, 1).await.is_ok());
        }
        assert!(life.status().memory_bytes < 64 << 10, "{} bytes for 64 blocks", life.status().memory_bytes);
    });
}
