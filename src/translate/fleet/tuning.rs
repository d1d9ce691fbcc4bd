//! `spec.tuning` and `spec.drain`: sizes and times. Threads and connections are the pod's.

use super::Reader;
use crate::api::{Drain, Duration, Timeouts, Tuning};
use crate::model::{Millis, Policy, ServerOptions};

/// What HAProxy is told where nothing is said of `hardStopAfter`.
const HARD_STOP: Millis = Millis(3_600_000);
/// HAProxy cuts that much later than whoever stops the pod.
const HARD_STOP_MARGIN: u32 = 10_000;

impl Reader<'_, '_> {
    pub(super) fn tuning(&mut self, tuning: &Tuning) {
        let nothing = Timeouts::default();
        let timeouts = tuning.timeouts.as_ref().unwrap_or(&nothing);
        let common = &mut self.state.common;
        common.client_timeout = millis(timeouts.client.as_ref());
        common.client_fin_timeout = millis(timeouts.client_fin.as_ref());
        common.http_request_timeout = millis(timeouts.http_request.as_ref());
        common.keep_alive_timeout = millis(timeouts.http_keep_alive.as_ref());
        common.buffer_bytes = tuning.header_buffer_bytes.and_then(|bytes| u32::try_from(bytes).ok());
        common.hard_stop_after = millis(tuning.hard_stop_after.as_ref());
        self.widest(&Policy {
            connect_timeout: millis(timeouts.connect.as_ref()),
            queue_timeout: millis(timeouts.queue.as_ref()),
            server_timeout: millis(timeouts.server.as_ref()),
            tunnel_timeout: millis(timeouts.tunnel.as_ref()),
            server: ServerOptions { inter: millis(tuning.health_check_interval.as_ref()), ..ServerOptions::default() },
            ..Policy::default()
        });
    }

    /// Half of the time that connections have when a pod ends: those that are asked to leave late have the other half.
    pub(super) fn drain(&mut self, drain: &Drain) {
        let common = &mut self.state.common;
        let timeout = millis(Some(&drain.timeout));
        common.close_spread = timeout.map(|Millis(timeout)| Millis(timeout / 2));
        // HAProxy takes this for every soft stop: it would cut a drain before its time, and nobody would count what
        let least = Millis(timeout.map_or(0, |Millis(timeout)| timeout).saturating_add(HARD_STOP_MARGIN));
        if common.hard_stop_after.unwrap_or(HARD_STOP) < least {
            common.hard_stop_after = Some(least);
        }
    }
}

fn millis(duration: Option<&Duration>) -> Option<Millis> {
    let seconds = duration?.seconds().filter(|seconds| *seconds > 0)?;
    Some(Millis(seconds.saturating_mul(1000)))
}
