//! Prints how large the house is: `just measure`.

use std::io::Write as _;

use meerkat_parity_tests::{measure::Figures, tidy};

fn main() -> Result<(), String> {
    let figures = Figures::of(&tidy::files()?, &tidy::packages()?);
    write!(std::io::stdout(), "{figures}").map_err(|error| error.to_string())
}
