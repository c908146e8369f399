//! Macro that turns the rows of `code.rs` into [`ErrorCode`](crate::ErrorCode) and its accessors.
//!
//! It holds no fact about any single code.

/// Use of sending the same request again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// It fails again until something changes.
    Never,
    /// It may succeed later.
    Later,
}

impl Retry {
    /// Returns the `retryable` member of the body.
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
        /// Stable name of a failure. Branch on this, never on a message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ErrorCode { $( $(#[$doc])* $variant, )* }

        impl ErrorCode {
            /// Every code, in the order of the table.
            pub const ALL: &'static [Self] = &[$( Self::$variant, )*];

            /// Returns the name on the wire: `SESSION_NOT_FOUND`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $wire, )* }
            }

            /// Returns the HTTP status for REST.
            #[must_use]
            pub const fn http_status(self) -> u16 {
                match self { $( Self::$variant => $http, )* }
            }

            /// Returns the JSON-RPC error number.
            #[must_use]
            pub const fn rpc_code(self) -> i32 {
                match self { $( Self::$variant => $rpc, )* }
            }

            /// Returns the exit code of the command line.
            #[must_use]
            pub const fn exit_code(self) -> u8 {
                match self { $( Self::$variant => $exit, )* }
            }

            /// Returns the use of sending the same request again.
            #[must_use]
            pub const fn retry(self) -> $crate::Retry {
                match self { $( Self::$variant => $crate::Retry::$retry, )* }
            }

            /// Returns the default message.
            #[must_use]
            pub const fn message(self) -> &'static str {
                match self { $( Self::$variant => $message, )* }
            }

            /// Returns the page: what happened, and what to do.
            #[must_use]
            pub const fn page(self) -> &'static str {
                match self { $( Self::$variant => include_str!(concat!("codes/", $wire, ".md")), )* }
            }

            /// Finds the code with this name on the wire.
            #[must_use]
            pub fn from_wire(name: &str) -> Option<Self> {
                match name { $( $wire => Some(Self::$variant), )* _ => None }
            }
        }
    };
}

pub(crate) use error_codes;
