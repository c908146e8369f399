//! Test that the table has every key with the engine's default.

use std::path::PathBuf;

use super::*;

fn load(text: &str) -> Values {
    Figment::from(Layer::text("test", text).unwrap_or_else(|_| panic!("{text}"))).extract().unwrap()
}

#[test]
fn the_table_holds_the_engines_defaults_and_every_key() {
    let values = load(BUILT_IN);
    assert_eq!(values.compaction, CompactionConfig::default());
    let config =
        Config { values, figment: Figment::new(), project: None, skipped: None, is_server: true, has_modes: false };
    assert_eq!(config.engine(), EngineOptions::default());
    assert_eq!(crate::serve::limits(&config), meerkat_serve::Limits::default());
    let whole = Figment::from(Layer::text("test", &whole_table()).ok().unwrap());
    let mut sections = serde_json::to_value(EngineOptions::default()).unwrap();
    sections["compaction"] = serde_json::to_value(CompactionConfig::default()).unwrap();
    for (section, options) in sections.as_object().unwrap() {
        for key in options.as_object().unwrap().keys() {
            assert!(whole.contains(&format!("{section}.{key}")), "{section}.{key} is not in the table");
        }
    }
    assert!(whole.extract::<Values>().is_ok());
}

#[test]
fn a_models_directory_is_found_from_the_folder_of_the_command() {
    let env = [("MEERKAT_MEMORY__EMBEDDER", "local"), ("MEERKAT_MEMORY__LOCAL__DIR", "models/mini")];
    let env = env.map(|(name, value)| (name.to_owned(), value.into())).into();
    let cli = <crate::args::Cli as clap::Parser>::try_parse_from(["meerkat", "capabilities"]).ok().unwrap();
    let config = Config::load(&Environment { variables: env, dir: "/project".into() }, &cli.globals).ok().unwrap();
    assert_eq!(config.engine().memory.local.dir, Some(PathBuf::from("/project/models/mini")));
}
