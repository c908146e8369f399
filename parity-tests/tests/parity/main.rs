//! The trials: every scenario, on every surface, in every build, each by its name: `A::sdk::000-create-and-run`.
//!
//! Other transports, surfaces that are mixed in one process, and trials that cannot be scenarios are counted apart. They run
//! in the builds with nothing and with everything.

mod apart;
#[path = "../../../crates/store-postgres/src/tests/cluster.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "the store's own tests need more of it")]
mod cluster;
mod database;
mod naughty;
mod plain;

use std::{
    io::Write as _,
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering},
};

use libtest_mimic::{Arguments, Trial};
use meerkat_parity_tests::{
    builds::{self, Build, THOROUGH},
    drivers::{MIXED, Make, SURFACES, TRANSPORTS},
    run::trial,
    scenario::{self, Scenario, Step},
};
use meerkat_store_postgres::PostgresOptions;
use serde_json::{Map, Value};

/// Steps that a surface has passed over, in all trials.
static PASSED_OVER: AtomicUsize = AtomicUsize::new(0);

fn main() -> Result<ExitCode, String> {
    let arguments = Arguments::from_args();
    let builds: &'static [Build] = builds::all()?.leak();
    let scenarios: &'static [Scenario] = scenario::all()?.leak();
    let mut trials = Vec::new();
    // Surfaces share concurrent turns and what outlives a process.
    let is_shared = |step: &Step| step.is_concurrent() || step.restart.is_some();
    let mixable: Vec<&Scenario> = scenarios.iter().filter(|scenario| scenario.steps.iter().any(is_shared)).collect();
    let (mut apart, mut thorough) = (0, 0);
    let (over_database, over_files): (Vec<&Build>, Vec<&Build>) = builds.iter().partition(|build| build.has_database());
    let mut on_nodes: Vec<Trial> = over_database.iter().flat_map(|build| database::trials(build, scenarios)).collect();
    let database = on_nodes.len();
    trials.append(&mut on_nodes);
    for build in over_files.iter().copied() {
        let is_thorough = build.is_thorough();
        thorough += usize::from(is_thorough);
        let mut add = |surface: &str, make: Make, scenario: Scenario| {
            let name = format!("{}::{surface}::{}", build.name, scenario.name);
            trials.push(Trial::test(name.clone(), move || {
                let passed_over = trial(&name, &scenario, build, &make)?;
                PASSED_OVER.fetch_add(passed_over, Ordering::Relaxed);
                Ok(())
            }));
        };
        // A transport does not depend on the capabilities of a build.
        let transports = TRANSPORTS.into_iter().filter(|_| is_thorough);
        for (surface, make) in SURFACES.into_iter().chain(transports) {
            add(surface, make, capabilities(build));
            scenarios.iter().for_each(|scenario| add(surface, make, scenario.clone()));
        }
        for (order, make) in MIXED.into_iter().filter(|_| is_thorough) {
            mixable.iter().for_each(|scenario| add(order, make, (*scenario).clone()));
        }
        let others = apart::trials(build, scenarios);
        apart += others.len();
        trials.extend(others);
    }
    let each = 1 + scenarios.len();
    let surfaces = over_files.len() * each * SURFACES.len();
    let transports = thorough * each * TRANSPORTS.len();
    let mixed = thorough * mixable.len() * MIXED.len();
    let expected = surfaces + transports + mixed + apart + database;
    if !arguments.list && arguments.filter.is_none() && arguments.skip.is_empty() {
        // A build is made while the trials of the one before it run. One that cannot be made fails its trials.
        std::thread::spawn(|| builds.iter().for_each(|build| drop(build.binaries())));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    let ran = conclusion.num_passed + conclusion.num_failed + conclusion.num_filtered_out;
    // Nothing is skipped: each build runs the same trials on each surface. `--list` runs none.
    let is_complete = ran as usize == expected && thorough == THOROUGH.len() && mixed > 0 && apart > 0 && database > 0;
    if !arguments.list && (!is_complete || conclusion.num_ignored > 0) {
        return Err(format!("{ran} trials ran, but there are {expected}"));
    }
    if !arguments.list && conclusion.num_passed + conclusion.num_failed == 0 {
        return Err("no trial has such a name, so nothing was tested".to_owned());
    }
    let told = writeln!(
        std::io::stderr(),
        "{surfaces} trials on {} surfaces in {} builds, {transports} on {} further transports and {mixed} on mixed surfaces \
         in the builds {}, {database} over a database, and {apart} apart; steps passed over because the surface has no such operation: {}",
        SURFACES.len(),
        over_files.len(),
        TRANSPORTS.len(),
        THOROUGH.join(" and "),
        PASSED_OVER.load(Ordering::Relaxed),
    );
    told.map_err(|error| error.to_string())?;
    Ok(conclusion.exit_code())
}

/// The first trial of each build: it has the capabilities in `config/builds.toml`, and no others.
fn capabilities(build: &Build) -> Scenario {
    let mut expected = build.row.capabilities.clone();
    expected.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
    expected.insert("build".to_owned(), build.said_name().into());
    let step =
        Step { operation: Some("capabilities".to_owned()), ok: Some(Value::Object(expected)), ..Step::default() };
    Scenario { name: "capabilities".to_owned(), config: Map::new(), steps: vec![step] }
}
