//! The numbers of generations. Pure.
//!
//! They are reserved in blocks, and a block is persisted before its first number is used: whoever leads next goes on
//! above it, so that no number ever means two bundles.

use std::ops::RangeInclusive;

/// How many numbers are reserved at a time: a Lease that is written once for so many changes is no load.
pub(super) const BLOCK: u64 = 10_000;

/// Numbers that may be used.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    blocks: Vec<RangeInclusive<u64>>,
}

impl Numbers {
    /// Adds a block that was reserved.
    pub(super) fn add(&mut self, block: RangeInclusive<u64>) {
        self.blocks.push(block);
    }

    /// Another replica numbers from now on.
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
    }

    /// The next number; `None` if none is left.
    pub(super) fn take(&mut self) -> Option<u64> {
        let number = self.blocks.first_mut()?.next();
        if self.blocks.first().is_some_and(RangeInclusive::is_empty) {
            self.blocks.remove(0);
        }
        number
    }

    /// Whether it is time to reserve more.
    pub(super) fn is_low(&self) -> bool {
        self.blocks.iter().map(|block| block.end().saturating_sub(*block.start())).sum::<u64>() < BLOCK / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_in_order_and_end_with_their_block() {
        let mut numbers = Numbers::default();
        assert_eq!(numbers.take(), None);
        numbers.add(11..=12);
        numbers.add(31..=31);
        assert_eq!([numbers.take(), numbers.take(), numbers.take(), numbers.take()], [Some(11), Some(12), Some(31), None]);
        numbers.add(1..=BLOCK);
        assert!(!numbers.is_low());
        numbers.clear();
        assert!(numbers.is_low() && numbers.take().is_none());
    }
}
