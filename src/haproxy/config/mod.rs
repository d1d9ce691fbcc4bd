//! HAProxy's configuration language: typed tokens, the only writer of configuration text, and a reader of
//! our own that the property tests hold the writer to.

pub mod parse;
mod tree;
mod writer;

pub use tree::{Expr, Fmt, Line, Refused, Section, Word};
pub use writer::write;
