//! The surfaces and their drivers.

mod cli;
mod process;
mod sdk;

use crate::driver::{Driver, Place};

/// Makes a driver at a place.
pub type Make = fn(Place) -> Result<Box<dyn Driver>, String>;

/// Every surface that is driven. Each runs every scenario in every build.
pub const SURFACES: [(&str, Make); 2] =
    [("sdk", |place| Ok(Box::new(sdk::Sdk::new(place)?))), ("cli", |place| Ok(Box::new(cli::Cli::new(place))))];
