//! `spec.logging`: what is written down.

use super::Reader;
use crate::api::{Capture, LogDestination as Wish, LogEmptyRequests, Logging, Syslog};
use crate::model::{AccessLog, LogDestination, LogFormat};
use crate::report::codes;
use std::net::SocketAddr;

impl Reader<'_, '_> {
    pub(super) fn logging(&mut self, logging: &Logging) {
        let Some(access) = &logging.access else { return };
        let destination = match (access.destination, &access.syslog) {
            (Wish::Container, _) => LogDestination::Output,
            (Wish::Syslog, syslog) => {
                let Some(server) = syslog.as_ref().and_then(server) else { return };
                server
            }
        };
        let captures = |captures: &[Capture]| {
            let capture = |capture: &Capture| (capture.name.as_str().into(), u32::try_from(capture.max_length).unwrap_or(1));
            captures.iter().map(capture).collect()
        };
        self.state.common.access_log = Some(AccessLog {
            destination,
            format: access.format.as_deref().and_then(|format| self.log_format(format)),
            max_length: u32::try_from(access.max_length).unwrap_or(1024),
            request_headers: captures(&access.captures.request_headers),
            response_headers: captures(&access.captures.response_headers),
            cookies: captures(&access.captures.cookies),
            empty_requests: access.empty_requests == LogEmptyRequests::Log,
        });
    }

    fn log_format(&mut self, text: &str) -> Option<LogFormat> {
        match LogFormat::read(text) {
            Ok(format) => Some(format),
            Err(wrong) => {
                let message = format!("the format {wrong}; HAProxy's HTTP log format is used");
                let help = "use variables of HAProxy's HTTP logs such as %ci and %{+Q}r, %% for a percent sign, and captures for headers";
                self.error("spec.logging.access.format", codes::INVALID_VALUE, message, help);
                None
            }
        }
    }
}

fn server(syslog: &Syslog) -> Option<LogDestination> {
    let address = SocketAddr::new(syslog.address.parse().ok()?, u16::try_from(syslog.port).ok()?);
    let facility = syslog.facility.strip_prefix("local")?.parse().ok().filter(|number| *number < 8)?;
    Some(LogDestination::Syslog { address, facility })
}
