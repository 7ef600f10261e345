//! Messages to a running cache, suspending, resuming and closing it.

use forebay_block::Status;
use thiserror::Error;

use super::super::Cache;

/// Why a message was not carried out.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum MessageError {
    /// Not one of the four words.
    #[error("unknown message {0:?}: a write cache takes flush, flush_on_suspend, cleaner and clear_stats, one word each")]
    Unknown(String),
    /// The device is suspended.
    #[error("the device is suspended: resume it first")]
    Busy,
    /// A device failed.
    #[error("not everything could be written to the origin: look at the log and the status")]
    Io,
}

impl Cache {
    /// Carries out a message: `flush`, `flush_on_suspend`, `cleaner` or `clear_stats`, one word,
    /// case ignored.
    ///
    /// # Errors
    /// [`MessageError`].
    pub async fn message(&self, words: &[&str]) -> Result<(), MessageError> {
        let [word] = words else { return Err(MessageError::Unknown(words.join(" "))) };
        match word.to_ascii_lowercase().as_str() {
            "flush" if self.suspended.get() => Err(MessageError::Busy),
            "flush" => match self.drain().await {
                Status::Ok => Ok(()),
                _ => Err(MessageError::Io),
            },
            "flush_on_suspend" => {
                self.flush_on_suspend.set(true);
                Ok(())
            }
            "cleaner" => {
                self.cleaner.set(true);
                self.flush_on_suspend.set(true);
                self.work.raise();
                Ok(())
            }
            "clear_stats" => {
                self.clear_counts();
                Ok(())
            }
            _ => Err(MessageError::Unknown((*word).to_owned())),
        }
    }

    /// Holds new bios back, commits, waits for writeback in flight, and makes durable what went past
    /// the cache. With `flush_on_suspend` everything is written home first.
    pub async fn suspend(&self) -> Status {
        self.suspended.set(true);
        self.space.raise();
        self.settled().await;
        let mut status = self.commit().await;
        if self.flush_on_suspend.replace(false) && status.is_ok() {
            status = self.drain().await;
        }
        self.writeback_left(&(super::super::index::OriginBlock(0)..super::super::index::OriginBlock(u64::MAX >> 1))).await;
        status = status.and(self.commit_superseded().await);
        status.and(self.flush_origin().await)
    }

    /// Lets bios in again.
    pub fn resume(&self) {
        self.suspended.set(false);
        let mut waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        for bio in waiting.drain(..) {
            self.start(bio);
        }
        self.work.raise();
    }

    /// Suspends, ends the tasks, and records the clean end in the side file: the last thing done to a
    /// cache. Dirty blocks stay in it.
    pub async fn close(&self) -> Status {
        let status = self.suspend().await;
        self.closed.set(true);
        for event in [&self.work, &self.round_ended, &self.open_idle, &self.space, &self.copy_ended] {
            event.raise();
        }
        let held = std::mem::take(&mut *self.waiting.borrow_mut());
        for bio in held {
            bio.end(Status::Aborted);
        }
        if status.is_ok() {
            Box::pin(self.record_clean()).await;
        }
        status
    }

    /// Bios that are being served or wait for their turn.
    pub(in super::super) fn running(&self) -> usize {
        let reads = self.reads.get().map_or(0, forebay_reactor::JobPool::running);
        reads + self.changes.get().map_or(0, forebay_reactor::JobPool::running)
    }

    /// Waits until every bio that came before has ended.
    async fn settled(&self) {
        while self.running() > 0 && !self.failed.get() {
            self.reactor.sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}
