//! The listener as programs use it.

mod dropped;
mod examples;
mod localhost;
