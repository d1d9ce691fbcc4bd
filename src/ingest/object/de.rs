//! From a tree to typed objects, with the path of every fault and every field that nobody asked for.

use super::path::Path;
use super::tree::{Content, Node};
use serde::de::{self, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor};
use std::cell::RefCell;
use std::fmt;

/// Why a tree is not what was asked for.
#[derive(Debug)]
pub(in crate::ingest) struct Error {
    /// Where; `None` until the fault is out of the innermost field.
    path: Option<String>,
    message: String,
}

impl Error {
    pub(in crate::ingest) fn into_parts(self) -> (String, String) {
        (self.path.unwrap_or_default(), self.message)
    }

    fn within(mut self, path: &Path<'_>) -> Self {
        self.path.get_or_insert_with(|| path.to_string());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { path: None, message: message.to_string() }
    }
}

/// Fields that the type does not have: path and content.
pub(in crate::ingest) type Ignored<'n, 'a> = Vec<(String, &'n Node<'a>)>;

/// Reads `node` as a `T`, and tells which of its fields a `T` does not have.
pub(in crate::ingest) fn read<'n, 'a, T: de::DeserializeOwned>(node: &'n Node<'a>) -> Result<(T, Ignored<'n, 'a>), Error> {
    let ignored = RefCell::new(Vec::new());
    let value = T::deserialize(De { node, path: &Path::Root, ignored: &ignored }).map_err(|error| error.within(&Path::Root))?;
    Ok((value, ignored.into_inner()))
}

struct De<'n, 'a, 'p> {
    node: &'n Node<'a>,
    path: &'p Path<'p>,
    ignored: &'p RefCell<Ignored<'n, 'a>>,
}

/// What a plain scalar means, by the rules that kubectl reads with (YAML 1.1).
enum Plain {
    Null,
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Text,
}

fn resolve(text: &str) -> Plain {
    let Some(first) = text.bytes().next() else { return Plain::Null };
    match text {
        "~" | "null" | "Null" | "NULL" => return Plain::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => return Plain::Bool(true),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => return Plain::Bool(false),
        ".inf" | ".Inf" | ".INF" | "+.inf" => return Plain::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Plain::Float(f64::NEG_INFINITY),
        ".nan" | ".NaN" | ".NAN" => return Plain::Float(f64::NAN),
        _ => {}
    }
    if !(first.is_ascii_digit() || matches!(first, b'-' | b'+' | b'.')) {
        return Plain::Text;
    }
    let digits = text.trim_start_matches(['-', '+']);
    let radix = |prefix: &str, radix| digits.strip_prefix(prefix).and_then(|digits| i64::from_str_radix(digits, radix).ok());
    let octal = || (digits.len() > 1 && digits.starts_with('0')).then(|| i64::from_str_radix(digits, 8).ok()).flatten();
    if let Some(number) = radix("0x", 16).or_else(|| radix("0o", 8)).or_else(|| radix("0b", 2)).or_else(octal) {
        return Plain::Signed(if first == b'-' { -number } else { number });
    }
    if let Ok(number) = text.parse::<i64>() {
        return Plain::Signed(number);
    }
    if let Ok(number) = text.parse::<u64>() {
        return Plain::Unsigned(number);
    }
    if text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-'))
        && let Ok(number) = text.parse::<f64>()
    {
        return Plain::Float(number);
    }
    Plain::Text
}

impl<'de> Deserializer<'de> for De<'_, '_, '_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.content {
            Content::Scalar { text, plain: false } => visitor.visit_str(text),
            Content::Scalar { text, plain: true } => match resolve(text) {
                Plain::Null => visitor.visit_unit(),
                Plain::Bool(value) => visitor.visit_bool(value),
                Plain::Signed(value) => visitor.visit_i64(value),
                Plain::Unsigned(value) => visitor.visit_u64(value),
                Plain::Float(value) => visitor.visit_f64(value),
                Plain::Text => visitor.visit_str(text),
            },
            Content::List(items) => visitor.visit_seq(Items { nodes: items.iter().enumerate(), path: self.path, ignored: self.ignored }),
            Content::Map { entries, twice } => {
                if let Some((key, _)) = twice.and_then(|at| entries.get(at)) {
                    let key = key.text().unwrap_or_default();
                    let error = de::Error::custom(format_args!("the field `{key}` is there twice"));
                    return Err(Error::within(error, &Path::Key(self.path, key)));
                }
                visitor.visit_map(Entries { pairs: entries.iter(), value: None, path: self.path, ignored: self.ignored })
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.node.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.ignored.borrow_mut().push((self.path.to_string(), self.node));
        visitor.visit_unit()
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match &self.node.content {
            Content::Scalar { text, plain } if !*plain || matches!(resolve(text), Plain::Text) => visitor.visit_enum(Variant(text)),
            Content::Scalar { text, .. } if variants.contains(&&**text) => {
                Err(de::Error::custom(format_args!("`{text}` without quotes is no text here; write \"{text}\"")))
            }
            _ => self.deserialize_any(Expecting { name, visitor }),
        }
    }

    // Numbers, texts and the rest decide by what is there: the visitor says whether it takes it.
    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct map struct identifier
    }
}

/// Says what was expected where something else than a name stands.
struct Expecting<V> {
    name: &'static str,
    visitor: V,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Expecting<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let _ = &self.visitor;
        write!(f, "one of the names of {}", self.name)
    }
}

struct Items<'n, 'a, 'p> {
    nodes: std::iter::Enumerate<std::slice::Iter<'n, Node<'a>>>,
    path: &'p Path<'p>,
    ignored: &'p RefCell<Ignored<'n, 'a>>,
}

impl<'de> SeqAccess<'de> for Items<'_, '_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some((index, node)) = self.nodes.next() else { return Ok(None) };
        let path = Path::Index(self.path, index);
        seed.deserialize(De { node, path: &path, ignored: self.ignored }).map(Some).map_err(|error| error.within(&path))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.nodes.len())
    }
}

struct Entries<'n, 'a, 'p> {
    pairs: std::slice::Iter<'n, (Node<'a>, Node<'a>)>,
    value: Option<&'n (Node<'a>, Node<'a>)>,
    path: &'p Path<'p>,
    ignored: &'p RefCell<Ignored<'n, 'a>>,
}

impl<'de> MapAccess<'de> for Entries<'_, '_, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        self.value = self.pairs.next();
        let Some((key, _)) = self.value else { return Ok(None) };
        // A number or `on` as a key is a text, as in JSON.
        seed.deserialize(de::value::StrDeserializer::new(key.text().unwrap_or_default())).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let Some((key, node)) = self.value.take() else { return Err(de::Error::custom("a value without a key")) };
        let path = Path::Key(self.path, key.text().unwrap_or_default());
        seed.deserialize(De { node, path: &path, ignored: self.ignored }).map_err(|error| error.within(&path))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.pairs.len())
    }
}

struct Variant<'t>(&'t str);

impl<'de> EnumAccess<'de> for Variant<'_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        Ok((seed.deserialize(de::value::StrDeserializer::new(self.0))?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _: T) -> Result<T::Value, Error> {
        Err(de::Error::custom("a name was expected"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Error> {
        Err(de::Error::custom("a name was expected"))
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], _: V) -> Result<V::Value, Error> {
        Err(de::Error::custom("a name was expected"))
    }
}
