//! A value behind a lock, and threads that sleep until somebody changed it.
//!
//! What uses a monitor is written for any of them, so that tests put that of a model checker there and try every order
//! in which threads can meet.

use std::ops::DerefMut;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A value behind a lock.
pub(super) trait Monitor {
    /// What is behind it.
    type Value;
    /// The lock while it is held.
    type Held<'a>: DerefMut<Target = Self::Value>
    where
        Self: 'a;

    fn new(value: Self::Value) -> Self;
    fn hold(&self) -> Self::Held<'_>;
    /// Lets go of the lock, sleeps until it is woken, or for no reason, and holds the lock again.
    fn wait<'a>(&'a self, held: Self::Held<'a>) -> Self::Held<'a>;
    fn wake_one(&self);
    fn wake_all(&self);
}

/// The monitor of the system. A panic cannot have poisoned it: it ends the process.
pub(super) struct Guarded<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T> Monitor for Guarded<T> {
    type Value = T;
    type Held<'a>
        = MutexGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Condvar::new() }
    }

    fn hold(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&'a self, held: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.changed.wait(held).unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_one(&self) {
        self.changed.notify_one();
    }

    fn wake_all(&self) {
        self.changed.notify_all();
    }
}

/// The monitor of the model checker.
#[cfg(test)]
pub(super) mod model {
    use loom::sync::{Condvar, Mutex, MutexGuard};

    use super::Monitor;

    pub(crate) struct Modelled<T> {
        value: Mutex<T>,
        changed: Condvar,
    }

    impl<T> Monitor for Modelled<T> {
        type Value = T;
        type Held<'a>
            = MutexGuard<'a, T>
        where
            T: 'a;

        fn new(value: T) -> Self {
            Self { value: Mutex::new(value), changed: Condvar::new() }
        }

        fn hold(&self) -> MutexGuard<'_, T> {
            self.value.lock().unwrap()
        }

        fn wait<'a>(&'a self, held: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.changed.wait(held).unwrap()
        }

        fn wake_one(&self) {
            self.changed.notify_one();
        }

        fn wake_all(&self) {
            self.changed.notify_all();
        }
    }
}
