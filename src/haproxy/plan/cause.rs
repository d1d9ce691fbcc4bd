//! What kind of thing asked for a reload: few words for metrics, made from the reasons, which name resources.

/// Whether a reason is of a kind.
type Fits = fn(&str) -> bool;

/// The kinds of causes, with what their reasons begin or end with. The first that fits counts.
const CAUSES: [(&str, Fits); 10] = [
    ("start", |reason| reason == "the first configuration"),
    ("drift", |reason| reason == "the running process is not as it should be"),
    ("connection", |reason| {
        reason.starts_with("the connection to HAProxy broke") || reason.starts_with("HAProxy refused it live: the connection broke")
    }),
    ("refused-live", |reason| reason.starts_with("HAProxy refused it live: ")),
    ("shape", |reason| reason.starts_with("the policy shape ") || is_of_shape(reason)),
    ("section", |reason| reason.starts_with("section ")),
    ("file", |reason| reason.starts_with("file ")),
    ("backend", |reason| reason.starts_with("backend ")),
    ("server", |reason| reason.starts_with("server ")),
    ("certificate", |reason| reason.ends_with(" is larger than a command may be on this HAProxy")),
];

/// What several causes at once are called, and what is none of these.
const SEVERAL: &str = "several";
const OTHER: &str = "other";

fn is_of_shape(reason: &str) -> bool {
    reason.starts_with("backend ") && reason.contains(" is new and so is its policy shape ")
}

/// The kind of cause of a reload whose reasons, joined by `; `, are `reasons`: one of a dozen words.
pub fn cause(reasons: &str) -> &'static str {
    let mut found = OTHER;
    for reason in reasons.split("; ") {
        let Some((name, _)) = CAUSES.iter().find(|(_, fits)| fits(reason)) else { continue };
        if found != OTHER && found != *name {
            return SEVERAL;
        }
        found = name;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_that_name_resources_become_few_words() {
        for (reasons, word) in [
            ("the first configuration", "start"),
            ("the running process is not as it should be", "drift"),
            ("the connection to HAProxy broke: broken pipe", "connection"),
            ("HAProxy refused it live: the connection broke: eof", "connection"),
            ("HAProxy refused it live: no such; backend", "refused-live"),
            ("the policy shape 1a2b is new", "shape"),
            ("the policy shape 1a2b is new; backend shop_cart_80 is new and so is its policy shape 1a2b", "shape"),
            ("section 10-global changed", "section"),
            ("section 20-http is gone", "section"),
            ("file tickets.keys is read at start only", "file"),
            ("backend shop_cart_80 has directives of its own and changed", "backend"),
            ("backend shop_cart_80 is new, which this HAProxy takes only by a reload", "backend"),
            ("server shop_cart_80/a comes back with other keywords before the old one is gone", "server"),
            ("certs/a.pem is larger than a command may be on this HAProxy", "certificate"),
            ("section 10-global changed; file a is read at start only", "several"),
            ("what a newer agent says", "other"),
            ("", "other"),
        ] {
            assert_eq!(cause(reasons), word, "{reasons}");
        }
    }
}
