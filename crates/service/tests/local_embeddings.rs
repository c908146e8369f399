//! Configuration of the embedder over a local model.

use std::path::{Path, PathBuf};

use meerkat_service::{
    AgentBuildConfig, SessionError,
    memory::MemoryOptions,
    options::{EmbedderChoice, EngineOptions},
};

fn published() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recall/tests/fixtures/bert")
}

#[test]
fn the_configuration_names_it() {
    let build = |dir: Option<PathBuf>| {
        let mut options = EngineOptions::default();
        (options.memory.embedder, options.memory.local.dir) = (EmbedderChoice::Local, dir);
        AgentBuildConfig::new().options(options).memory(None, MemoryOptions::default()).build()
    };
    assert!(build(Some(published())).is_ok());
    for dir in [None, Some(PathBuf::from("/nowhere/at all"))] {
        let error = build(dir).err().unwrap();
        assert!(matches!(&error, SessionError::ConfigInvalid { key, .. } if key == "memory.local.dir"), "{error:?}");
    }
}
