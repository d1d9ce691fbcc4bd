//! Whether the pods of a zone keep to the endpoints of that zone.

use super::{FleetState, ServiceRecord, Wish};
use crate::api::ZoneAwarenessMode;
use crate::model::{Backend, BackendKind, Balance, Policy, ZoneRule};
use crate::report::{Diagnostic, Kind, ObjectRef, codes};
use crate::translate::annotations::{self, PREFIX};

/// When pods keep to their zone for a backend of this policy; `None`: never.
pub(super) fn rule(policy: &Policy, service: Option<&ServiceRecord>, fleet: &FleetState) -> Option<ZoneRule> {
    let by_service = service.is_some_and(|service| service.prefers_zone);
    let wanted = match fleet.zones.mode {
        ZoneAwarenessMode::Never => false,
        ZoneAwarenessMode::Auto => policy.zone_aware.unwrap_or(by_service),
        ZoneAwarenessMode::Always => policy.zone_aware.unwrap_or(true),
    };
    let number = |number: i32| u16::try_from(number).unwrap_or(u16::MAX);
    let zones = &fleet.zones;
    let rule = || ZoneRule { min_ready: number(zones.min_ready_endpoints), min_share: number(zones.min_share_percent) };
    (wanted && goes_by_weight(policy.balance.as_ref())).then(rule)
}

/// Whether it matters which weights servers have, and nothing else hangs on them: pods that hash have to agree.
fn goes_by_weight(balance: Option<&Balance>) -> bool {
    matches!(balance, None | Some(Balance::RoundRobin | Balance::LeastConn | Balance::Random(_)))
}

/// What is told to whoever asks by our annotation for what cannot be had.
pub(in crate::translate) fn told_in_vain(
    wish: &Wish,
    service: Option<&ServiceRecord>,
    fleet: &FleetState,
    backend: &Backend,
) -> Option<Diagnostic> {
    let asked = backend.policy.zone_aware == Some(true) && backend.zones.is_none() && backend.kind == BackendKind::Endpoints;
    if !asked {
        return None;
    }
    let by_service = service.is_some_and(|service| service.policy.zone_aware.is_some());
    let of_service = wish.service.as_ref().filter(|_| by_service);
    let of_service = of_service.map(|(namespace, name)| ObjectRef::new(Kind::Service, namespace.clone(), name.clone()));
    let object = of_service.or_else(|| wish.sources.iter().find(|object| object.kind == Kind::Ingress).cloned())?;
    let (message, help) = if fleet.zones.mode == ZoneAwarenessMode::Never {
        ("requests go to all zones alike: zoneAwareness of the fleet says Never", "remove the key, or ask for mode Auto of the fleet")
    } else {
        (
            "requests go to all zones alike: with this balance every pod has to choose the same servers",
            "use balance roundrobin, leastconn or random, or remove the key",
        )
    };
    let field = annotations::field(&format!("{PREFIX}zone-aware"));
    Some(Diagnostic::info(&object, field, codes::CONFLICT, message, help))
}
