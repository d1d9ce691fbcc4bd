//! `spec.http`: what every request and response gets.

use super::Reader;
use crate::api::{EmptyRequests, ForwardedPolicy, HeaderAction, HeaderActionType, Http};
use crate::model::{ErrorPage, ForwardFor, Forwarded, HeaderEdits, Hsts, PageKind, Policy};
use crate::report::{Code, Diagnostic, codes};
use crate::translate::names;
use std::sync::Arc;

impl Reader<'_, '_> {
    pub(super) fn http(&mut self, http: &Http) {
        let headers = &http.headers;
        let common = &mut self.state.common;
        common.forwarded = match headers.forwarded_policy {
            ForwardedPolicy::Append => Forwarded::Append,
            ForwardedPolicy::Replace => Forwarded::Replace,
            ForwardedPolicy::IfNone => Forwarded::IfNone,
            ForwardedPolicy::Never => Forwarded::Never,
        };
        common.unique_id = headers.unique_id.as_ref().map(|id| id.name.as_str().into());
        common.request_headers = edits(&headers.request);
        common.response_headers = edits(&headers.response);
        common.hsts = http.hsts.as_ref().map(|hsts| Hsts {
            max_age: u32::try_from(hsts.max_age).unwrap_or_default(),
            include_sub_domains: hsts.include_sub_domains,
            preload: hsts.preload,
        });
        common.ignore_empty_requests = http.empty_requests == EmptyRequests::Ignore;
        common.compressed =
            http.compression.iter().flat_map(|compression| &compression.mime_types).map(|kind| kind.as_str().into()).collect();
        if let Some(reference) = &http.error_pages_ref {
            self.error_pages(&reference.name);
        }
        self.widest(&Policy { forwardfor: forwardfor(headers.forwarded_policy), ..Policy::default() });
    }

    fn error_pages(&mut self, name: &str) {
        let Some((object, map)) = self.config_map("spec.http.errorPagesRef.name", name) else { return };
        for (key, body) in map.data.iter() {
            let page = page(key, body).and_then(|(status, kind)| {
                let taken = self.state.common.error_pages.contains_key(&status);
                if taken {
                    Err((codes::CONFLICT, format!("there is a page for {status} already"), "keep one of them"))
                } else {
                    Ok((status, kind))
                }
            });
            match page {
                Ok((status, kind)) => {
                    let sources = Arc::new([object.clone(), self.object.clone()]);
                    self.state.common.error_pages.insert(status, ErrorPage { kind, body: body.into(), sources });
                }
                Err((code, message, help)) => {
                    let field = format!("data[{}]", names::quoted(key));
                    let message = format!("{message}; this page is left out");
                    self.state.diagnostics.push(Diagnostic::error(&object, field, code, message, help));
                }
            }
        }
    }
}

/// The part of the forwarded policy that is a matter of backends.
fn forwardfor(policy: ForwardedPolicy) -> Option<ForwardFor> {
    let (enabled, ifnone) = match policy {
        // what backends do anyway
        ForwardedPolicy::Append | ForwardedPolicy::Replace => return None,
        ForwardedPolicy::IfNone => (true, true),
        ForwardedPolicy::Never => (false, false),
    };
    Some(ForwardFor { enabled, header: None, except: None, ifnone })
}

fn edits(actions: &[HeaderAction]) -> HeaderEdits {
    let named = |kind| actions.iter().filter(move |action| action.kind == kind);
    let value = |action: &HeaderAction| Some((action.name.as_str().into(), action.value.as_deref()?.into()));
    HeaderEdits {
        set: named(HeaderActionType::Set).filter_map(value).collect(),
        add: Vec::new(),
        remove: named(HeaderActionType::Delete).map(|action| action.name.as_str().into()).collect(),
    }
}

/// What the page `key` is for, or what is wrong with it and what to do.
fn page(key: &str, body: &str) -> Result<(u16, PageKind), (Code, String, &'static str)> {
    let (status, extension) = key.split_once('.').unwrap_or((key, ""));
    let kind = match extension {
        "html" => PageKind::Html,
        "json" => PageKind::Json,
        "txt" => PageKind::Text,
        _ => {
            let message = format!("the key {} says no media type", names::quoted(key));
            return Err((codes::INVALID_FIELD, message, "write a status and html, json or txt, as in 503.html"));
        }
    };
    let status = ErrorPage::STATUSES.into_iter().find(|known| known.to_string() == status).ok_or_else(|| {
        let message = format!("HAProxy has no page for the status {}", names::quoted(status));
        (codes::INVALID_FIELD, message, "use one of 401, 403 to 405, 407, 410, 413, 421, 422, 425, 429, 500 to 504")
    })?;
    if body.is_empty() {
        return Err((codes::INVALID_VALUE, "the page is empty".to_owned(), "write a body, or take the key away"));
    }
    if body.len() > ErrorPage::MAX_BYTES {
        let message = format!("the page has {} bytes, more than {}", body.len(), ErrorPage::MAX_BYTES);
        return Err((codes::TOO_LARGE, message, "make it shorter, and leave pictures and styles to a server"));
    }
    Ok((status, kind))
}
