//! What a fleet is made of: how its replicas are shared out. Pure.

mod replicas;

pub use replicas::{Replica, ZoneSize, replicas};
