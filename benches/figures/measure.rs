//! Clocks and counters: percentiles, processor time, memory.

use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::io;
use std::time::Duration;

/// Durations of one kind of thing.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<Duration>);

impl Samples {
    /// Remembers one.
    pub fn add(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    /// The duration in milliseconds that the given share of samples (0 to 1) does not exceed; 0 without samples.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)] // small counts
    pub fn quantile_ms(&mut self, share: f64) -> f64 {
        self.0.sort_unstable();
        let rank = (share * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.saturating_sub(1)).copied().unwrap_or_default().as_secs_f64() * 1000.0
    }
}

/// The middle of `values`; 0 without any.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Processor time that this process has used, all threads that ever were together.
pub fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Processor time that the present threads of another process have used.
pub fn cpu(process: u32) -> io::Result<Duration> {
    let mut total = Duration::ZERO;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let text = fs::read_to_string(thread?.path().join("schedstat"))?;
        let nanoseconds = text.split_whitespace().next().and_then(|number| number.parse().ok());
        total += Duration::from_nanos(nanoseconds.ok_or_else(|| io::Error::other("schedstat has no number"))?);
    }
    Ok(total)
}

/// Resident memory of a process in MiB (`None`: this one).
pub fn rss_mib(process: Option<u32>) -> io::Result<f64> {
    status_mib(process, "VmRSS:")
}

/// The most resident memory that a process ever had, in MiB (`None`: this one).
pub fn peak_rss_mib(process: Option<u32>) -> io::Result<f64> {
    status_mib(process, "VmHWM:")
}

fn status_mib(process: Option<u32>, field: &str) -> io::Result<f64> {
    let process = process.map_or_else(|| "self".to_owned(), |process| process.to_string());
    let text = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let kib: Option<f64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    Ok(kib.ok_or_else(|| io::Error::other(format!("/proc/{process}/status has no {field}")))? / 1024.0)
}
