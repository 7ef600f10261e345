//! Regions become clean again, some time after the last write to them.
//!
//! ```text
//!   every TICK while regions are dirty: which were not written since the last tick?
//!        ─▶ flush all legs, unless a client's flush did it since ─▶ bits to 1, with one round
//! ```
//!
//! Waiting costs at most the copying of a few regions after a crash, and spares a region that is
//! written often from being marked again and again.

use std::rc::Rc;
use std::time::Duration;

use crate::mirror::Mirror;

/// How long a region is left alone before it becomes clean, at least.
const TICK: Duration = Duration::from_millis(500);

impl Mirror {
    /// Makes regions clean until the end.
    pub(in crate::mirror) async fn clean(self: Rc<Self>) {
        let mut quiet = 0;
        while !self.closed.get() {
            let seen = self.written.count();
            if !self.log.has_active() {
                self.written.after(seen, None).await;
                continue;
            }
            self.reactor.sleep(TICK).await;
            if self.closed.get() {
                return;
            }
            let now = self.log.time();
            let last = self.log.cleanable(quiet, |region| self.has_all(region));
            let unflushed = last.is_some_and(|last| !self.log.is_flushed(last));
            if unflushed && self.state.borrow().legs.alive() == self.state.borrow().legs.all() {
                // What a failure means is decided there.
                let _verdict = self.flush_legs().await;
            }
            let round = self.log.clean(quiet, |region| self.has_all(region));
            if round == 0 && quiet == now {
                // Legs are out, or regions out of sync: it is looked at again when something happens.
                self.written.after(seen, None).await;
            }
            quiet = now;
        }
    }
}
