//! The rate of a slow transfer.

use crate::config::time_of;
use std::time::Duration;
use tokio::time::Instant;

const LARGEST_PIECE: u64 = 16 * 1024;
const PIECES_A_SECOND: u64 = 20;

/// When which byte of a transfer is due.
pub(crate) struct Pace {
    started: Instant,
    bytes: u64,
    bytes_per_second: u64,
    patience: Duration,
}

impl Pace {
    /// Bytes are due from now on at that rate, and are too late after another `patience`.
    pub(crate) fn new(bytes_per_second: u64, patience: Duration) -> Self {
        Self { started: Instant::now(), bytes: 0, bytes_per_second, patience }
    }

    /// So many bytes more went by.
    pub(crate) fn passed(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// When the next byte is due.
    pub(crate) fn due(&self) -> Instant {
        self.started + self.planned()
    }

    /// When the next byte is lost.
    pub(crate) fn late(&self) -> Instant {
        self.due() + self.patience
    }

    /// How many bytes to move at once.
    pub(crate) fn piece(&self) -> usize {
        // at most 16 KiB, which is a usize everywhere
        usize::try_from((self.bytes_per_second / PIECES_A_SECOND).clamp(1, LARGEST_PIECE)).unwrap_or(1)
    }

    /// How long all bytes so far were to take.
    pub(crate) fn planned(&self) -> Duration {
        time_of(self.bytes, self.bytes_per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_due_at_their_rate_and_too_late_after_the_patience() {
        let mut pace = Pace::new(1000, Duration::from_secs(3));
        let begin = pace.due();
        pace.passed(500);
        pace.passed(1000);
        assert_eq!((pace.due() - begin, pace.late() - begin), (Duration::from_millis(1500), Duration::from_millis(4500)));
        assert_eq!(pace.planned(), Duration::from_millis(1500));
    }

    #[test]
    fn pieces_are_small_enough_to_go_smoothly_and_never_empty() {
        let piece = |rate| Pace::new(rate, Duration::ZERO).piece();
        assert_eq!((piece(1), piece(100_000), piece(u64::MAX)), (1, 5000, 16 * 1024));
    }
}
