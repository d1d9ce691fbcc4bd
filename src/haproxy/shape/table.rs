//! Which part of a policy is shape, value or server keyword: the one table, for the code's tests and the docs.

/// Where a field of a policy ends up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// In the named defaults section: another content is another shape (a reload unless that shape is in use).
    Shape,
    /// In a map, keyed by backend: whether it is set is shape, what it says is live.
    Value,
    /// On each server: live, by new servers and draining the old.
    Server,
    /// In the backend itself, which is written in full: every change is a reload.
    Private,
    /// Refused by name.
    Refused,
}

/// One field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The field of [`crate::model::Policy`].
    pub field: &'static str,
    /// Where it ends up on HAProxy 3.4 and newer.
    pub since_3_4: Part,
    /// Where it ends up on older ones.
    pub before: Part,
    /// The directives that it becomes.
    pub directives: &'static str,
}

const fn row(field: &'static str, part: Part, directives: &'static str) -> Row {
    Row { field, since_3_4: part, before: part, directives }
}

const TABLE: &[Row] = &[
    row("balance", Part::Shape, "balance, hash-type consistent"),
    row("hash_type", Part::Shape, "hash-type consistent, hash-balance-factor"),
    row("cookie", Part::Shape, "cookie"),
    row("dynamic_cookie_key", Part::Shape, "dynamic-cookie-key"),
    Row {
        field: "connect_timeout",
        since_3_4: Part::Value,
        before: Part::Shape,
        directives: "http-request set-timeout connect; timeout connect",
    },
    row("server_timeout", Part::Value, "http-request set-timeout server"),
    Row {
        field: "queue_timeout",
        since_3_4: Part::Value,
        before: Part::Shape,
        directives: "http-request set-timeout queue; timeout queue",
    },
    row("tunnel_timeout", Part::Value, "http-request set-timeout tunnel"),
    row("check_timeout", Part::Shape, "timeout check"),
    row("retries", Part::Shape, "retries"),
    row("retry_on", Part::Shape, "retry-on"),
    row("redispatch", Part::Shape, "option redispatch"),
    row("http_connection_mode", Part::Shape, "option http-keep-alive, http-server-close, httpclose"),
    row("forwardfor", Part::Shape, "option forwardfor"),
    row("fullconn", Part::Shape, "fullconn"),
    row("abortonclose", Part::Shape, "option abortonclose"),
    row("http_check.uri", Part::Value, "http-check send uri-lf"),
    row("http_check.host", Part::Value, "http-check send hdr Host"),
    row("http_check.method", Part::Shape, "http-check send meth"),
    row("http_check.version", Part::Shape, "http-check send ver"),
    row("http_check.expect", Part::Shape, "http-check expect"),
    row("server", Part::Server, "server keywords"),
    row("rewrite", Part::Value, "http-request set-path"),
    row("rewrite_host", Part::Value, "http-request set-header Host"),
    row("redirect.to", Part::Value, "http-request redirect location"),
    row("redirect.code", Part::Shape, "http-request redirect code"),
    row("request_headers.names", Part::Shape, "http-request set-header, add-header, del-header"),
    row("request_headers.values", Part::Value, "http-request set-header, add-header"),
    row("response_headers.names", Part::Shape, "http-response set-header, add-header, del-header"),
    row("response_headers.values", Part::Value, "http-response set-header, add-header"),
    row("cors", Part::Private, "http-request return, http-after-response set-header"),
    row("zone_aware", Part::Server, "weight, in each pod another one"),
    row("mirror", Part::Refused, ""),
];

/// The table, for documentation: in TCP mode there are no rules, so time-outs are shape there.
pub fn table() -> &'static [Row] {
    TABLE
}

/// First words of the directives that may stand in a shape. A test adds, uses and deletes a backend at run
/// time for each of them: some others crash HAProxy, do nothing or are refused in a defaults section.
pub const ALLOWED: &[&[&str]] = &[
    &["mode"],
    &["balance"],
    &["hash-type"],
    &["hash-balance-factor"],
    &["cookie"],
    &["dynamic-cookie-key"],
    &["timeout", "connect"],
    &["timeout", "server"],
    &["timeout", "queue"],
    &["timeout", "tunnel"],
    &["timeout", "check"],
    &["retries"],
    &["retry-on"],
    &["option", "redispatch"],
    &["no", "option", "redispatch"],
    &["option", "http-keep-alive"],
    &["option", "http-server-close"],
    &["option", "httpclose"],
    &["option", "forwardfor"],
    &["option", "abortonclose"],
    &["no", "option", "abortonclose"],
    &["option", "httpchk"],
    &["fullconn"],
    &["http-check", "send"],
    &["http-check", "expect"],
    &["http-request", "set-timeout"],
    &["http-request", "set-var"],
    &["http-request", "set-var-fmt"],
    &["http-request", "set-path"],
    &["http-request", "set-header"],
    &["http-request", "add-header"],
    &["http-request", "del-header"],
    &["http-request", "redirect"],
    &["http-request", "deny"],
    &["http-request", "do-resolve"],
    &["http-request", "set-dst"],
    &["http-request", "set-dst-port"],
    &["http-response", "set-header"],
    &["http-response", "add-header"],
    &["http-response", "del-header"],
];

/// Whether a directive of these words may stand in a shape.
pub fn allowed(words: &[&str]) -> bool {
    ALLOWED.iter().any(|first| {
        words.len() >= first.len()
            && first.iter().zip(words).all(|(want, word)| {
                // `set-var(txn.x)` and the like carry their argument in the word.
                word.split('(').next() == Some(*want)
            })
    })
}
