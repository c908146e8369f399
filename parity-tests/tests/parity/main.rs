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
    collections::BTreeSet,
    io::Write as _,
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering},
};

use libtest_mimic::{Arguments, Trial};
use meerkat_parity_tests::{
    builds::{self, Build, THOROUGH},
    contract::contract,
    drivers::{MIXED, Make, SURFACES, TRANSPORTS, TWO_NODES},
    run::trial,
    scenario::{self, Scenario, Step},
};
use meerkat_store_postgres::PostgresOptions;
use serde_json::{Map, Value};

/// Steps that a surface has passed over, in all trials.
static PASSED_OVER: AtomicUsize = AtomicUsize::new(0);

/// Trials over a database that could not run, because this machine has none.
static WITHOUT_DATABASE: AtomicUsize = AtomicUsize::new(0);

/// Trials that cannot be scenarios: in each thorough build two on each surface and two of the Model Context Protocol, and
/// in the whole build one on each surface as people start it.
const APART: usize = THOROUGH.len() * (2 * SURFACES.len() + 2) + SURFACES.len();

fn main() -> Result<ExitCode, String> {
    let arguments = Arguments::from_args();
    let default = [env!("CARGO_BIN_EXE_parity-meerkat"), env!("CARGO_BIN_EXE_parity-sdk-driver")];
    let builds: &'static [Build] = builds::all_with(default)?.leak();
    let scenarios: &'static [Scenario] = scenario::all()?.leak();
    let mut trials = Vec::new();
    // Surfaces share concurrent turns and what outlives a process.
    let is_shared = |step: &Step| step.is_concurrent() || step.restart.is_some();
    let mixable: Vec<&Scenario> = scenarios.iter().filter(|scenario| scenario.steps.iter().any(is_shared)).collect();
    let mut thorough = 0;
    let (over_database, over_files): (Vec<&Build>, Vec<&Build>) = builds.iter().partition(|build| build.has_database());
    let mut on_nodes: Vec<Trial> = over_database.iter().flat_map(|build| database::trials(build, scenarios)).collect();
    let database = on_nodes.len();
    trials.append(&mut on_nodes);
    for build in over_files.iter().copied() {
        let is_thorough = build.is_thorough();
        thorough += usize::from(is_thorough);
        let mut add = |surface: &'static str, make: Make, scenario: Scenario| {
            let name = format!("{}::{surface}::{}", build.name, scenario.name);
            trials.push(Trial::test(name.clone(), move || {
                let passed_over = trial(&name, &scenario, build, &make)?;
                PASSED_OVER.fetch_add(passed_over, Ordering::Relaxed);
                match absent(surface, build, &scenario) {
                    absent if absent == passed_over => Ok(()),
                    absent => {
                        Err(format!("{name}: {passed_over} steps were passed over, but {absent} are absent").into())
                    }
                }
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
        trials.extend(apart::trials(build, scenarios));
    }
    let each = 1 + scenarios.len();
    let surfaces = over_files.len() * each * SURFACES.len();
    let transports = thorough * each * TRANSPORTS.len();
    let mixed = thorough * mixable.len() * MIXED.len();
    let expected = surfaces + transports + mixed + APART + database;
    if !arguments.list && arguments.filter.is_none() && arguments.skip.is_empty() {
        // A build is made while the trials of the one before it run. One that cannot be made fails its trials.
        std::thread::spawn(|| builds.iter().for_each(|build| drop(build.binaries())));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    let ran = conclusion.num_passed + conclusion.num_failed + conclusion.num_filtered_out;
    // Nothing is skipped: each build runs the same trials on each surface. `--list` runs none.
    let is_complete =
        ran as usize == expected && thorough == THOROUGH.len() && mixed > 0 && database >= TWO_NODES.len();
    if !arguments.list && (!is_complete || conclusion.num_ignored > 0) {
        return Err(format!("{ran} trials ran, but there are {expected}"));
    }
    if !arguments.list && conclusion.num_passed + conclusion.num_failed == 0 {
        return Err("no trial has such a name, so nothing was tested".to_owned());
    }
    let not_run = match WITHOUT_DATABASE.load(Ordering::Relaxed) {
        0 => String::new(),
        count => format!(" ({count} of them NOT RUN: there is no PostgreSQL)"),
    };
    let told = writeln!(
        std::io::stderr(),
        "{surfaces} trials on {} surfaces in {} builds, {transports} on {} further transports and {mixed} on mixed surfaces \
         in the builds {}, {database} over a database{not_run}, and {APART} apart; steps passed over because the surface has no such operation: {}",
        SURFACES.len(),
        over_files.len(),
        TRANSPORTS.len(),
        THOROUGH.join(" and "),
        PASSED_OVER.load(Ordering::Relaxed),
    );
    told.map_err(|error| error.to_string())?;
    Ok(conclusion.exit_code())
}

/// The steps of a scenario that a surface has no operation for, by the contract. Files are made again only in a build that
/// has what the step needs.
fn absent(surface: &str, build: &Build, scenario: &Scenario) -> usize {
    if !["mcp", "mcp-stdio", "mcp-resource"].contains(&surface) {
        return 0;
    }
    let is_absent =
        |operation: &str| contract().operations.get(operation).is_some_and(|spelling| spelling.no_mcp.is_some());
    let (mut unsent, mut absent) = (BTreeSet::new(), 0);
    for step in &scenario.steps {
        let is_step_absent = match (&step.operation, &step.awaited) {
            (Some(operation), _) => is_absent(operation),
            (None, Some(name)) => unsent.contains(name),
            (None, None) => {
                let mut needs = step.needs.iter().flat_map(|needs| needs.split_whitespace()).chain(["session-store"]);
                step.reproject && is_absent("rebuild_projection") && needs.all(|need| build.has(need))
            }
        };
        if is_step_absent {
            unsent.extend(step.detached.clone());
            absent += 1;
        }
    }
    absent
}

/// The first trial of each build: it has the capabilities in `config/builds.toml`, and no others.
fn capabilities(build: &Build) -> Scenario {
    let mut expected = build.row.capabilities.clone();
    expected.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
    expected.insert("build".to_owned(), build.said_name().into());
    // That is a setting, and no trial sets it.
    expected.insert("keeps_rules".to_owned(), false.into());
    let step =
        Step { operation: Some("capabilities".to_owned()), ok: Some(Value::Object(expected)), ..Step::default() };
    Scenario { name: "capabilities".to_owned(), config: Map::new(), steps: vec![step] }
}
