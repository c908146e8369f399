//! The trials: every scenario, on every surface, in every build, each by its name: `A::sdk::000-create-and-run`.

use std::{
    io::Write as _,
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering},
};

use libtest_mimic::{Arguments, Failed, Trial};
use meerkat_parity_tests::{
    Place,
    builds::{self, Build},
    drivers::{Make, SURFACES, TRANSPORTS},
    run,
    run::config,
    scenario::{self, Scenario, Step},
};
use serde_json::{Map, Value};

/// Steps that a surface has passed over, in all trials.
static PASSED_OVER: AtomicUsize = AtomicUsize::new(0);

fn main() -> Result<ExitCode, String> {
    let arguments = Arguments::from_args();
    let builds: &'static [Build] = builds::all()?.leak();
    let scenarios: &'static [Scenario] = scenario::all()?.leak();
    let mut trials = Vec::new();
    for build in builds {
        for (surface, make) in SURFACES.into_iter().chain(TRANSPORTS) {
            let mut add = |scenario: Scenario| {
                let name = format!("{}::{surface}::{}", build.name, scenario.name);
                trials.push(Trial::test(name, move || trial(&scenario, build, make)));
            };
            add(capabilities(build));
            scenarios.iter().cloned().for_each(&mut add);
        }
    }
    let each = builds.len() * (1 + scenarios.len());
    let expected = each * (SURFACES.len() + TRANSPORTS.len());
    let conclusion = libtest_mimic::run(&arguments, trials);
    let ran = conclusion.num_passed + conclusion.num_failed + conclusion.num_filtered_out;
    // Nothing is skipped: each build runs the same trials on each surface. `--list` runs none.
    if !arguments.list && (ran as usize != expected || scenarios.is_empty() || conclusion.num_ignored > 0) {
        return Err(format!("{ran} trials ran, but there are {expected}"));
    }
    let told = writeln!(
        std::io::stderr(),
        "{each} trials on each of {} surfaces and {} further transports; steps passed over because the surface has no \
         such operation: {}",
        SURFACES.len(),
        TRANSPORTS.len(),
        PASSED_OVER.load(Ordering::Relaxed),
    );
    told.map_err(|error| error.to_string())?;
    Ok(conclusion.exit_code())
}

/// The first trial of each build: it can do what `config/builds.toml` says, and nothing else.
fn capabilities(build: &Build) -> Scenario {
    let mut expected = build.row.capabilities.clone();
    expected.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
    expected.insert("build".to_owned(), build.name.clone().into());
    let step =
        Step { operation: Some("capabilities".to_owned()), ok: Some(Value::Object(expected)), ..Step::default() };
    Scenario { name: "capabilities".to_owned(), config: Map::new(), steps: vec![step] }
}

fn trial(scenario: &Scenario, build: &Build, make: Make) -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let binaries = build.binaries()?;
    let config = config(scenario, folder.path());
    let played = make(Place { binaries, folder: folder.path().to_owned(), config })
        .and_then(|mut driver| run(scenario, build, driver.as_mut(), folder.path().to_owned()));
    let count = |passed_over| {
        PASSED_OVER.fetch_add(passed_over, Ordering::Relaxed);
    };
    played.map(count).map_err(|why| {
        let log = std::fs::read_to_string(folder.path().join("stderr.txt")).unwrap_or_default();
        format!("{why}\nstandard error of the processes:\n{log}").into()
    })
}
