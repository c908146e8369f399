//! What turns the rows of `code.rs` into [`ErrorCode`](crate::ErrorCode) and its accessors.
//!
//! It holds no fact about any single code: those stand in the rows.

/// Whether sending the same request again can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// The same request fails the same way until something is changed.
    Never,
    /// The same request may succeed later, unchanged.
    Later,
}

impl Retry {
    /// The `retryable` member of the body.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Later)
    }
}

macro_rules! error_codes {
    ($(
        $(#[$doc:meta])*
        $variant:ident = $wire:literal, $http:literal, $rpc:literal, $exit:literal, $retry:ident, $message:literal;
    )*) => {
        /// What went wrong, as a stable name. Branch on this, never on a message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ErrorCode { $( $(#[$doc])* $variant, )* }

        impl ErrorCode {
            /// Every code, in the order of the table.
            pub const ALL: &'static [Self] = &[$( Self::$variant, )*];

            /// The name on the wire: `SESSION_NOT_FOUND`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $wire, )* }
            }

            /// The HTTP status that REST answers with.
            #[must_use]
            pub const fn http_status(self) -> u16 {
                match self { $( Self::$variant => $http, )* }
            }

            /// The JSON-RPC error number.
            #[must_use]
            pub const fn rpc_code(self) -> i32 {
                match self { $( Self::$variant => $rpc, )* }
            }

            /// The exit code of the command line.
            #[must_use]
            pub const fn exit_code(self) -> u8 {
                match self { $( Self::$variant => $exit, )* }
            }

            /// Whether the same request can succeed later.
            #[must_use]
            pub const fn retry(self) -> $crate::Retry {
                match self { $( Self::$variant => $crate::Retry::$retry, )* }
            }

            /// The message where nothing more is known.
            #[must_use]
            pub const fn message(self) -> &'static str {
                match self { $( Self::$variant => $message, )* }
            }

            /// The page: what happened, and what to do.
            #[must_use]
            pub const fn page(self) -> &'static str {
                match self { $( Self::$variant => include_str!(concat!("codes/", $wire, ".md")), )* }
            }

            /// The code with this name on the wire.
            #[must_use]
            pub fn from_wire(name: &str) -> Option<Self> {
                match name { $( $wire => Some(Self::$variant), )* _ => None }
            }
        }
    };
}

pub(crate) use error_codes;
