//! Values that several groups of the spec are made of.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;

/// A span of time: a whole number and one of `s`, `m`, `h`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Duration(pub String);

/// What a [`Duration`] looks like.
pub(super) const DURATION: &str = "^(0|[1-9][0-9]{0,4})[smh]$";

impl Duration {
    /// Its seconds; `None` if it is not one.
    pub fn seconds(&self) -> Option<u32> {
        let unit = match self.0.chars().next_back()? {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            _ => return None,
        };
        let number = &self.0[..self.0.len() - 1];
        let written = !number.is_empty() && number.len() <= 5 && number.bytes().all(|byte| byte.is_ascii_digit());
        if !written || number.len() > 1 && number.starts_with('0') {
            return None;
        }
        number.parse::<u32>().ok()?.checked_mul(unit)
    }
}

impl From<&str> for Duration {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl JsonSchema for Duration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "maxLength": 6, "pattern": DURATION})
    }
}

/// A number of pods, or a share of them such as `25%`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IntOrPercent(pub IntOrString);

/// What the text of an [`IntOrPercent`] looks like.
pub(super) const PERCENT: &str = "^(100|[1-9]?[0-9])%$";

impl IntOrPercent {
    /// The pods that it stands for, of `total`; shares of a pod are rounded as `round_up` says. `None`: it is neither.
    pub fn of(&self, total: i32, round_up: bool) -> Option<i32> {
        match &self.0 {
            IntOrString::Int(number) => Some(*number),
            IntOrString::String(text) => {
                let digits = text.strip_suffix('%').filter(|digits| !digits.is_empty() && digits.len() <= 3)?;
                let percent = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<i64>().ok())??;
                let pods = (i64::from(total) * percent + if round_up { 99 } else { 0 }) / 100;
                (percent <= 100).then(|| i32::try_from(pods).ok())?
            }
        }
    }

    /// Whether it is none of however many.
    pub fn is_zero(&self) -> bool {
        self.of(100, true) == Some(0)
    }
}

impl JsonSchema for IntOrPercent {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "IntOrPercent".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "minimum": 0,
            "maximum": 1000,
            "maxLength": 4,
            "pattern": PERCENT,
        })
    }
}

/// An amount of CPU or memory as Kubernetes writes it: `500m`, `2`, `1Gi`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Quantity(pub String);

/// What a [`Quantity`] looks like: no signs, no exponents.
pub(super) const QUANTITY: &str = "^[0-9]{1,12}([.][0-9]{1,3})?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$";

impl Quantity {
    /// Thousandths of the unit; `None` if it is not one.
    pub fn thousandths(&self) -> Option<u128> {
        let end = self.0.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(self.0.len());
        let (number, suffix) = self.0.split_at(end);
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str, most: usize| (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole, 12) || !digits(part, 3) {
            return None;
        }
        let thousandths = whole.parse::<u128>().ok()? * 1000 + format!("{part:0<3}").parse::<u128>().ok()?;
        let factor = match suffix {
            "m" => return Some(thousandths.div_ceil(1000)),
            "" => 1,
            "k" => 1000,
            "M" => 1_000_000,
            "G" => 1_000_000_000,
            "T" => 1_000_000_000_000,
            "Ki" => 1 << 10,
            "Mi" => 1 << 20,
            "Gi" => 1 << 30,
            "Ti" => 1 << 40,
            _ => return None,
        };
        Some(thousandths * factor)
    }

    /// Whole units, rounded up: bytes of memory.
    pub fn units(&self) -> Option<u128> {
        Some(self.thousandths()?.div_ceil(1000))
    }
}

impl From<&str> for Quantity {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl<'de> Deserialize<'de> for Quantity {
    /// A number without a unit may be written as one.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match IntOrString::deserialize(deserializer)? {
            IntOrString::Int(number) => number.to_string(),
            IntOrString::String(text) => text,
        }))
    }
}

impl JsonSchema for Quantity {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"x-kubernetes-int-or-string": true, "maxLength": 20, "pattern": QUANTITY})
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn a_duration_is_a_number_and_a_unit() {
        for (text, seconds) in [("0s", Some(0)), ("45s", Some(45)), ("2m", Some(120)), ("24h", Some(86_400))] {
            assert_eq!(Duration::from(text).seconds(), seconds, "{text}");
        }
        for text in ["", "s", "45", "1.5s", "-1s", "045s", "1m30s", "123456s", "4ms", "5\u{b5}"] {
            assert_eq!(Duration::from(text).seconds(), None, "{text}");
        }
    }

    #[test]
    fn a_share_is_rounded_as_asked() {
        let share = |text: &str| IntOrPercent(IntOrString::String(text.to_owned()));
        assert_eq!((share("25%").of(3, true), share("25%").of(3, false), share("100%").of(7, false)), (Some(1), Some(0), Some(7)));
        assert_eq!(IntOrPercent(IntOrString::Int(2)).of(1, true), Some(2));
        assert!(share("0%").is_zero() && !share("1%").is_zero());
        for text in ["", "%", "101%", "-1%", "+1%", "25"] {
            assert_eq!(share(text).of(10, true), None, "{text}");
        }
    }

    #[test]
    fn a_quantity_may_be_a_number_and_says_how_much_it_is() {
        let quantity: Quantity = serde_json::from_value(json!(2)).unwrap();
        assert_eq!((quantity.units(), quantity.0.as_str()), (Some(2), "2"));
        for (text, units) in [("1Gi", 1 << 30), ("500m", 1), ("1.5Ki", 1536), ("128M", 128_000_000)] {
            assert_eq!(Quantity::from(text).units(), Some(units), "{text}");
        }
        for text in ["", "Gi", "1e3", "-1", "1.", ".5", "1.2345", "1 Gi", "1gi"] {
            assert_eq!(Quantity::from(text).units(), None, "{text}");
        }
    }
}
