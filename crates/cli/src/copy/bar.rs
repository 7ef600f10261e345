//! Progress for people: a bar, what is done, the speed, and the time that is left.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use forebay_target::copy::time_left;

use crate::figures;

/// Cells of the bar.
const CELLS: u64 = 24;
/// Time between two looks at the progress.
pub const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A line that is drawn over itself on standard error; elsewhere than on a terminal a line every few
/// seconds.
pub struct Bar {
    terminal: bool,
    shown: bool,
    drawn: Duration,
}

impl Bar {
    /// A bar on a terminal, or where it is asked for; else none.
    pub fn new(asked: bool) -> Option<Self> {
        let terminal = std::io::stderr().is_terminal();
        (terminal || asked).then_some(Self { terminal, shown: false, drawn: Duration::ZERO })
    }

    /// Draws what is done of `total` bytes after `elapsed`; `first` bytes were done before.
    pub fn draw(&mut self, first: u64, done: u64, total: u64, elapsed: Duration) {
        self.show(done >= total, elapsed, || line(first, done, total, elapsed));
    }

    /// Draws what is done after `elapsed` of what ends nobody knows where; `ended` when that is all.
    pub fn draw_open(&mut self, done: u64, ended: bool, elapsed: Duration) {
        self.show(ended, elapsed, || format!("{}, {}/s", figures::bytes(done), speed(done, elapsed)));
    }

    fn show(&mut self, last: bool, elapsed: Duration, line: impl FnOnce() -> String) {
        let often = if self.terminal { LOOK_EVERY } else { Duration::from_secs(5) };
        if !last && elapsed < self.drawn + often {
            return;
        }
        self.drawn = elapsed;
        self.shown = true;
        let line = line();
        // Progress that nobody reads stops nothing.
        let _ = if self.terminal { write!(std::io::stderr(), "\r{line}\x1b[K") } else { writeln!(std::io::stderr(), "{line}") };
    }

    /// Leaves the line.
    pub fn end(self) {
        if self.terminal && self.shown {
            let _ = writeln!(std::io::stderr());
        }
    }
}

fn line(first: u64, done: u64, total: u64, elapsed: Duration) -> String {
    let share = |of: u64| {
        if total == 0 { of } else { u64::try_from(u128::from(done) * u128::from(of) / u128::from(total)).unwrap_or(of) }
    };
    let full = usize::try_from(share(CELLS).min(CELLS)).expect("a few cells");
    let bar = format!("{}{}", "#".repeat(full), "-".repeat(usize::try_from(CELLS).expect("a few cells") - full));
    let new = done.saturating_sub(first);
    let speed = speed(new, elapsed);
    let left = match time_left(new, total.saturating_sub(first), elapsed) {
        Some(time) if done < total => format!(", about {} left", figures::span(time)),
        _ => String::new(),
    };
    format!("[{bar}] {:3} % of {}, {speed}/s{left}", share(100), figures::bytes(total))
}

/// Bytes of one second.
fn speed(bytes: u64, elapsed: Duration) -> String {
    let speed = u128::from(bytes) * 1000 / elapsed.as_millis().max(1);
    figures::bytes(u64::try_from(speed).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_share_speed_and_time_left() {
        let half = line(0, 512 << 20, 1 << 30, Duration::from_secs(2));
        assert_eq!(half, "[############------------]  50 % of 1 GiB, 256 MiB/s, about 2 s left");
        let resumed = line(512 << 20, 768 << 20, 1 << 30, Duration::from_secs(1));
        assert_eq!(resumed, "[##################------]  75 % of 1 GiB, 256 MiB/s, about 1 s left");
        assert_eq!(line(0, 0, 0, Duration::ZERO), "[########################] 100 % of 0 B, 0 B/s");
    }
}
