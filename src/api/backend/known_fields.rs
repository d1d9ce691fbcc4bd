//! The names of all fields of the model, supported or not.

use std::collections::BTreeSet;
use std::sync::LazyLock;

/// Made by `tools/backend-fields`.
static LIST: &str = include_str!("known_fields.txt");

static FIELDS: LazyLock<BTreeSet<&'static str>> = LazyLock::new(|| LIST.lines().collect());

/// Whether the model has the field `path` (relative to `spec`; the positions of lists do not matter:
/// `http_check_list[3].addr` is `http_check_list[].addr`).
pub fn is_known(path: &str) -> bool {
    if FIELDS.contains(path) {
        return true;
    }
    let mut general = String::with_capacity(path.len());
    let mut inside = false;
    for character in path.chars() {
        match character {
            '[' => inside = true,
            ']' => inside = false,
            _ if inside => continue,
            _ => {}
        }
        general.push(character);
    }
    FIELDS.contains(general.as_str())
}
