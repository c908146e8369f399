//! One scenario, many surfaces and builds: what meerkat promises, held against every way to ask for it.
//!
//! To add a scenario, write `scenarios/NNN-name.toml` (see [`scenario`]). To add a surface, write a [`Driver`]
//! and a row in [`drivers::SURFACES`], or in [`drivers::TRANSPORTS`] for another way to the same surface. To add a
//! build, write a row in `config/builds.toml`. An expectation is written from the contract; it is never taken from
//! what the code under test, or another surface, has said.

pub mod contract;
pub mod scenario;

pub mod expect;
pub mod run;

mod driver;
pub mod drivers;

pub mod builds;
pub mod tidy;

pub mod measure;

pub use driver::{Answer, Driver, Lines, PATIENCE, Pending, Place};
pub use run::run;
