//! Every diagnostic code, in one place, so that filters and documentation can rely on them.

/// A stable name for one kind of finding, in `CamelCase` as condition reasons are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(pub &'static str);

impl Code {
    /// The name.
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

/// A file or document that is not valid YAML or JSON.
pub const SYNTAX: Code = Code("Syntax");
/// A field has the wrong type, or a required one is missing.
pub const INVALID_FIELD: Code = Code("InvalidField");
/// A field that the kind does not have.
pub const UNKNOWN_FIELD: Code = Code("UnknownField");
/// A kind that this product does not read.
pub const UNKNOWN_KIND: Code = Code("UnknownKind");
/// The same object twice.
pub const DUPLICATE_OBJECT: Code = Code("DuplicateObject");
/// An object beyond a size or count limit.
pub const TOO_LARGE: Code = Code("TooLarge");
/// A value that the field does not take.
pub const INVALID_VALUE: Code = Code("InvalidValue");
/// A known field or value that is not supported.
pub const UNSUPPORTED: Code = Code("Unsupported");
/// A reference to an object that does not exist.
pub const NOT_FOUND: Code = Code("NotFound");
/// An object that has no effect.
pub const UNUSED: Code = Code("Unused");
/// A reference that is not allowed, such as one into another namespace.
pub const REF_NOT_PERMITTED: Code = Code("RefNotPermitted");
/// A certificate or key that cannot be used.
pub const INVALID_CERTIFICATE: Code = Code("InvalidCertificate");
/// Somebody else's older claim wins.
pub const CONFLICT: Code = Code("Conflict");
/// An endpoint address that traffic must not be sent to.
pub const ADDRESS_REFUSED: Code = Code("AddressRefused");
/// HAProxy refused the configuration that this object leads to.
pub const REFUSED_BY_HAPROXY: Code = Code("RefusedByHaproxy");
/// What is asked for cannot be done at present, such as an address that somebody else has.
pub const NOT_APPLIED: Code = Code("NotApplied");
/// A change that did harm in the first pods and was put back.
pub const QUARANTINED: Code = Code("Quarantined");
/// What is asked for has no effect because somebody went back to an earlier revision.
pub const PINNED: Code = Code("Pinned");
/// A namespace that asks for more than its share.
pub const LIMIT_REACHED: Code = Code("LimitReached");
/// Something that the operator needs and was not granted.
pub const NOT_PERMITTED: Code = Code("NotPermitted");
