//! Two processes of one world: a server with its disks, and whoever talks to it and outlives it.
//!
//! ```text
//!   server's reactor ── turn ──▶ idle? ┐
//!                                      ├─ both, twice ─▶ time jumps to what is due first
//!   clients' reactor ── turn ──▶ idle? ┘
//! ```
//!
//! 1. Both have one clock. Neither of them moves it by itself: it jumps when none has anything to do.
//! 2. What reaches a stream is found at the next turn of the other one.

use std::time::Duration;

use fastrand::Rng;
use forebay_reactor::Reactor;

use super::super::{Stop, World, WorldOptions};

/// Rounds in which nobody did anything, after which time jumps: what one did in the first is seen in the second.
const IDLE_ROUNDS: u32 = 2;

/// What a process has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Now,
    At(Duration),
    /// Whatever another one does.
    Never,
}

impl World {
    /// The same world for another process without disks, with a chance of its own.
    #[must_use]
    pub fn beside(&self, seed: u64, trace: bool) -> Self {
        let yield_always = Rng::with_seed(seed).bool();
        let other = Self::new(WorldOptions { seed, disks: Vec::new(), yield_always, early_effect: false, trace });
        other.0.borrow_mut().clock = self.0.borrow().clock.shared();
        for world in [self, &other] {
            world.0.borrow_mut().paired = true;
        }
        other
    }

    /// Lets a life go on for as long as if it began now.
    pub fn go_on(&self) {
        let mut state = self.0.borrow_mut();
        state.life_began = state.clock.now();
    }

    /// Ends every connection of this process, as the system does when it ends.
    pub fn hang_up(&self) {
        self.0.borrow_mut().streams.hang_up();
    }
}

/// Takes turns of processes of one world until `over`, or until one of them is stopped.
pub fn take_turns(processes: &[(&World, &Reactor)], over: impl Fn() -> bool) {
    let mut idle_rounds = 0;
    while !over() {
        for (world, reactor) in processes {
            world.0.borrow_mut().next = Next::Now;
            if reactor.turn(true).is_err() {
                return;
            }
        }
        let next: Vec<Next> = processes.iter().map(|(world, _)| world.0.borrow().next).collect();
        idle_rounds = if next.contains(&Next::Now) { 0 } else { idle_rounds + 1 };
        if idle_rounds < IDLE_ROUNDS || over() {
            continue;
        }
        idle_rounds = 0;
        let times = next.iter().filter_map(|next| if let Next::At(time) = next { Some(*time) } else { None });
        let mut first = processes[0].0.0.borrow_mut();
        let Some(time) = times.min() else {
            first.stop = Some(Stop::Deadlock);
            return;
        };
        first.clock.jump_to(time);
    }
}
