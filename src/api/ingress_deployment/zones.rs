//! Whether requests stay in the zone of the pod that takes them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether pods prefer the endpoints of their own zone, and while how many of these are ready. Below that, requests go to
/// all zones alike. Nothing is reloaded for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ZoneAwareness {
    /// For which Services.
    #[serde(default)]
    pub mode: ZoneAwarenessMode,
    /// How many endpoints of the zone are ready at least.
    #[serde(default = "min_ready_endpoints")]
    #[schemars(range(min = 1, max = 1000))]
    pub min_ready_endpoints: i32,
    /// How many endpoints of the zone are ready at least, in percent of its fair share: as many as it would have if all
    /// ready endpoints were spread evenly over the zones that have any. Pods that prefer their zone go on with it down to
    /// two thirds of that.
    #[serde(default = "min_share_percent")]
    #[schemars(range(min = 1, max = 100))]
    pub min_share_percent: i32,
}

impl Default for ZoneAwareness {
    fn default() -> Self {
        Self { mode: ZoneAwarenessMode::default(), min_ready_endpoints: min_ready_endpoints(), min_share_percent: min_share_percent() }
    }
}

fn min_ready_endpoints() -> i32 {
    2
}

fn min_share_percent() -> i32 {
    75
}

/// Which Services have their requests stay in a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ZoneAwarenessMode {
    /// Those that ask for it: by `spec.trafficDistribution` (`PreferClose`, `PreferSameZone` or `PreferSameNode`), by the
    /// annotation `service.kubernetes.io/topology-mode: Auto`, or by `haproxy-fleet.dev/zone-aware: "true"`.
    #[default]
    Auto,
    /// All but those that say `haproxy-fleet.dev/zone-aware: "false"`.
    Always,
    /// None.
    Never,
}
