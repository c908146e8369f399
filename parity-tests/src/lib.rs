//! One scenario, many surfaces and builds: meerkat's promises, held against every surface.
//!
//! To add a scenario, write `scenarios/NNN-name.toml` (see [`scenario`]). To add a surface, write a [`Driver`]
//! and a row in [`drivers::SURFACES`], or in [`drivers::TRANSPORTS`] for another transport of the same surface. To add a
//! build, write a row in `config/builds.toml`. An expectation is written from the contract; it is never copied from an
//! answer.

pub mod contract;
pub mod scenario;

pub mod expect;
pub mod run;

mod driver;
pub mod drivers;

pub mod builds;
pub mod plan;
pub mod specification;
pub mod tidy;

pub mod measure;

pub use driver::{Answer, Database, Driver, Lines, PATIENCE, Pending, Place};
pub use run::run;
