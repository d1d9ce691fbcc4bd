//! Open-loop load generator that accounts for every request by kind of loss.
//!
//! Requests start at times that were fixed beforehand, whatever the answers do, and none is ever sent twice.
//! Whatever does not end in the expected answer is a loss of exactly one [`Loss`] kind. Latency counts from the
//! intended start, so that a stall is seen by every request that it delayed, not only by the one that met it: the
//! histogram is free of coordinated omission, and so are those of the [`Second`]s of a run. The runtime's timer, which
//! starts requests, has a resolution of 1 ms, and so has the latency.
//!
//! A request may be more than a `GET`: [`Unit`] has slow downloads, slow uploads, and a WebSocket with its messages.
//! What became of those beyond the count of the lost is in [`Lasting`], above all how many the other side cut before
//! their deadline. A [`Mix`] runs several loads at once. [`Handle::mark`] notes what happens meanwhile, and
//! [`Report::svg`] draws it all.
//!
//! ```no_run
//! # async fn example() -> Result<(), fleet_load::ConfigError> {
//! use fleet_load::{Config, Load, Protocol, Target};
//!
//! let target = Target::new(([127, 0, 0, 1], 8080).into(), "a.example", "/");
//! let load = Load::start(Config { rate: 500.0, protocol: Protocol::Http1KeepAlive, ..Config::new(vec![target]) })?;
//! // … change things …
//! let report = load.stop().await;
//! assert_eq!(report.lost, 0, "{report:?}");
//! # Ok(())
//! # }
//! ```
//!
//! The generator runs on a thread of its own, so the caller's work neither delays requests nor needs a runtime.

mod account;
mod config;
mod connect;
mod engine;
mod handle;
mod http1;
mod http2;
mod pace;
mod report;
mod series;
mod svg;
mod websocket;

pub use config::{Config, ConfigError, Mix, Part, Protocol, Target, Tls, Trust, Unit};
pub use handle::{Handle, Load, Marker, capacity};
pub use report::{Example, Lasting, Latency, Loss, Mark, Pod, Report};
pub use series::Second;
