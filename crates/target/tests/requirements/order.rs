//! Several copies of one block on media: a power cut never uncovers an older one than was durable.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::Op;
use forebay_target::cache::options::Overwrite;

use crate::support::rig::{Life, Rig, fast_bytes};
use crate::support::tape::Disk;

/// The block that is written again and again.
const BLOCK: u64 = 7;

fn small() -> Rig {
    let mut rig = Rig::new(fast_bytes(512, 512), 1 << 20, 512);
    rig.options.high_watermark = Some(100);
    rig.options.low_watermark = Some(100);
    rig
}

fn rig() -> Rig {
    let mut rig = small();
    rig.options.max_age_ms = Some(2000);
    rig.options.autocommit_time_ms = Some(3_600_000);
    rig.origin_slowness = Some(Rc::new(|op, _| Duration::from_millis(if op == Op::Write { 1000 } else { 0 })));
    rig
}

/// Uses up slots, so that the entry of the next one lies in another sector.
async fn other_slots(life: &Life) {
    assert!(life.write_fua(100, 64, 9).await.is_ok());
    assert!(life.discard(100, 64).await.is_ok());
}

/// Cuts the power in front of every step from `from` on, with any part of what was not flushed, and
/// checks that the block is no older than `oldest`.
fn check_cuts(rig: &Rig, from: usize, oldest: u8) {
    let mut rng = fastrand::Rng::with_seed(1);
    let (fast, origin) = (vec![0; rig.fast.borrow().bytes.len()], vec![0; rig.origin.borrow().bytes.len()]);
    let steps = rig.tape.borrow().steps.len();
    for cut in from..=steps {
        for _ in 0..6 {
            let other = small();
            other.fast.borrow_mut().bytes = rig.tape.borrow().image(Disk::Fast, &fast, cut, || rng.bool());
            other.origin.borrow_mut().bytes = rig.tape.borrow().image(Disk::Origin, &origin, cut, || rng.bool());
            let stamp = other.run(async |life| life.read(BLOCK, 1).await[0]);
            assert!(stamp >= oldest, "cut in front of step {cut} of {from}..{steps}: {stamp} is older than {oldest}");
        }
    }
}

#[test]
fn a_replaced_copy_that_went_home_is_cleared_behind_its_elder() {
    let mut rig = rig();
    rig.options.overwrite = Some(Overwrite::New);
    let from = rig.run(async |life| {
        assert!(life.write_fua(BLOCK, 1, 1).await.is_ok());
        other_slots(life).await;
        assert!(life.write_fua(BLOCK, 1, 2).await.is_ok());
        assert!(life.until(3000, || life.status().writeback > 0).await);
        let from = rig.tape.borrow().steps.len();
        assert!(life.write(BLOCK, 1, 3).await.is_ok());
        life.sleep_ms(3000).await;
        assert!(life.flush().await.is_ok());
        from
    });
    check_cuts(&rig, from, 2);
}
