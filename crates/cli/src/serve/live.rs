//! One line of figures on a terminal, written over each second.

use std::rc::Rc;
use std::time::Duration;

use super::running::Running;
use crate::failure::say;
use crate::figures;

/// Time between two lines.
const EVERY: Duration = Duration::from_secs(1);

/// What the line is made from; totals since the start.
#[derive(Clone, Copy, Default)]
struct Totals {
    at: Duration,
    requests: u64,
    read_bytes: u64,
    written_bytes: u64,
    device_bios: u64,
    device_requests: u64,
}

impl Totals {
    fn of(running: &Running) -> Self {
        let mut totals = Self { at: running.reactor().now(), ..Self::default() };
        for export in running.exports() {
            totals.requests += export.requests();
            totals.read_bytes += export.counts.bytes_read;
            totals.written_bytes += export.counts.bytes_written;
        }
        for device in running.stacks().iter().flat_map(|stack| stack.status().devices) {
            totals.device_bios += device.counts.bios;
            totals.device_requests += device.counts.requests;
        }
        totals
    }

    fn line(&self, before: &Self, dirty_bytes: u64) -> String {
        let millis = u64::try_from((self.at.saturating_sub(before.at)).as_millis()).unwrap_or(u64::MAX).max(1);
        let per_second = |now: u64, then: u64| now.saturating_sub(then).saturating_mul(1000) / millis;
        format!(
            "{} requests/s  read {}/s  written {}/s  merge ratio {}  dirty {}",
            figures::count(per_second(self.requests, before.requests)),
            figures::bytes(per_second(self.read_bytes, before.read_bytes)),
            figures::bytes(per_second(self.written_bytes, before.written_bytes)),
            figures::ratio(self.device_bios - before.device_bios, self.device_requests - before.device_requests),
            figures::bytes(dirty_bytes),
        )
    }
}

/// Shows figures until the server leaves.
pub async fn show(running: Rc<Running>) {
    let mut before = Totals::of(&running);
    loop {
        running.reactor().sleep(EVERY).await;
        if running.is_leaving() {
            return;
        }
        let now = Totals::of(&running);
        // A terminal that is gone takes nothing away from the clients.
        let _ = say(&format!("\r{}\x1b[K", now.line(&before, running.dirty_bytes())));
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_shows_speeds_of_the_last_interval() {
        let before = Totals::default();
        let at = Duration::from_secs(2);
        let now = Totals { at, requests: 3000, read_bytes: 4096, written_bytes: 4 << 20, device_bios: 30, device_requests: 4 };
        assert_eq!(now.line(&before, 1 << 20), "1,500 requests/s  read 2 KiB/s  written 2 MiB/s  merge ratio 7.5  dirty 1 MiB");
    }
}
