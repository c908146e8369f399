//! The memory's log where a build keeps sessions and lacks `memory-store`: a log that another build wrote is not looked at.

use std::path::Path;

use crate::store::StoreError;

/// What is damaged in the log of a data directory: nothing that this build could read.
///
/// # Errors
/// None in this build.
pub(crate) const fn examine_log(_data_dir: &Path, _is_owned: bool) -> Result<Vec<String>, StoreError> {
    Ok(Vec::new())
}

/// Mends the log of a data directory.
///
/// # Errors
/// That this build cannot.
pub(crate) fn mend_log(_data_dir: &Path) -> Result<String, StoreError> {
    Err(StoreError::Failed("this build has no memory".to_owned()))
}
