//! The `meerkat` binary.

fn main() {}
