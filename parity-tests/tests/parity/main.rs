//! The trials: every scenario, on every surface, in every build, each by its name: `F::sdk::000-create-and-run`.
//!
//! `cargo test` runs so many of them that each pair is there, and `MEERKAT_CAMPAIGNS=parity` all (see `plan`). Other
//! transports, surfaces that are mixed in one process, a database, and trials that cannot be scenarios are counted apart.

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
    drivers::{MIXED, SURFACES, TRANSPORTS, TWO_NODES},
    plan::{self, Cell, OverDatabase, Plan},
    run::{Maker, trial},
    scenario::{self, Scenario, Step},
};
use meerkat_store_postgres::PostgresOptions;
use meerkat_testkit::campaigns::Part;
use serde_json::{Map, Value, json};

/// The scenario of a build's capabilities, and its operation.
const CAPABILITIES: &str = "capabilities";

/// Steps that a surface has passed over, in all trials.
static PASSED_OVER: AtomicUsize = AtomicUsize::new(0);

/// Trials over a database that could not run, because this machine has none.
static WITHOUT_DATABASE: AtomicUsize = AtomicUsize::new(0);

/// Trials that cannot be scenarios: in each thorough build two on each surface and two of the Model Context Protocol, in
/// the whole build one on each surface as people start it, and in the build with nothing one of the command line.
const APART: usize = THOROUGH.len() * (2 * SURFACES.len() + 2) + SURFACES.len() + 1;

fn main() -> Result<ExitCode, String> {
    let arguments = Arguments::from_args();
    let default = [env!("CARGO_BIN_EXE_parity-meerkat"), env!("CARGO_BIN_EXE_parity-sdk-driver")];
    let builds: &'static [Build] = builds::all_with(default)?.leak();
    let scenarios: &'static [Scenario] = scenario::all()?.leak();
    let (undriven, driven): (Vec<&Build>, Vec<&Build>) = builds.iter().partition(|build| !build.row.driven);
    let (over_database, over_files): (Vec<&Build>, Vec<&Build>) =
        driven.into_iter().partition(|build| build.has_database());
    // Surfaces share concurrent turns and what outlives a process.
    let is_shared = |step: &Step| step.is_concurrent() || step.restart.is_some();
    let mixable = scenarios.iter().filter(|scenario| scenario.steps.iter().any(is_shared));
    let names: Vec<&str> = [CAPABILITIES].into_iter().chain(scenarios.iter().map(|it| it.name.as_str())).collect();
    let mut plan = Plan::of(
        &over_files.iter().map(|build| build.name.as_str()).collect::<Vec<_>>(),
        &names,
        &mixable.map(|scenario| scenario.name.as_str()).collect::<Vec<_>>(),
        Part::Parity.is_whole(),
    );
    plan.surfaces.extend(undriven.iter().flat_map(|build| plan::undriven(&build.name, &names)));
    let mut trials = Vec::new();
    for cell in [&plan.surfaces, &plan.transports, &plan.mixed].into_iter().flatten() {
        trials.push(in_files(cell, builds, scenarios)?);
    }
    over_files.iter().for_each(|build| trials.extend(apart::trials(build, scenarios)));
    let mut database = 0;
    for build in over_database {
        let planned = OverDatabase::of(&with_capabilities(build, scenarios), Part::Nodes.is_whole());
        database += planned.on_one.len() + planned.on_two.len();
        trials.extend(database::trials(build, scenarios, &planned)?);
    }
    // The programs of the build with everything are there already: the others are made while its trials run.
    trials.sort_by_key(|trial| !trial.name().starts_with('F'));
    let [surfaces, transports, mixed] = [&plan.surfaces, &plan.transports, &plan.mixed].map(Vec::len);
    let expected = surfaces + transports + mixed + APART + database;
    if !arguments.list && arguments.filter.is_none() && arguments.skip.is_empty() {
        // A build is made while the trials of the one before it run. One that cannot be made fails its trials.
        std::thread::spawn(|| builds.iter().for_each(|build| drop(build.binaries())));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    let ran = conclusion.num_passed + conclusion.num_failed + conclusion.num_filtered_out;
    // Nothing is skipped: what is planned runs. `--list` runs none.
    let is_complete = ran as usize == expected && mixed > 0 && database >= TWO_NODES.len();
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
    let extent = if Part::Parity.is_whole() { "all" } else { "each pair of them; MEERKAT_CAMPAIGNS=parity: all" };
    let told = writeln!(
        std::io::stderr(),
        "{surfaces} trials of {} scenarios on {} surfaces in {} builds ({extent}), {transports} on {} further transports \
         and {mixed} on mixed surfaces, {database} over a database{not_run}, and {APART} apart; steps passed over because \
         the surface has no such operation: {}",
        names.len(),
        SURFACES.len(),
        over_files.len() + undriven.len(),
        TRANSPORTS.len(),
        PASSED_OVER.load(Ordering::Relaxed),
    );
    told.map_err(|error| error.to_string())?;
    Ok(conclusion.exit_code())
}

/// A planned trial, over files.
fn in_files(cell: &Cell, builds: &'static [Build], scenarios: &[Scenario]) -> Result<Trial, String> {
    let build = builds.iter().find(|build| build.name == cell.build).ok_or("a build is unknown")?;
    let drivers = SURFACES.into_iter().chain(TRANSPORTS).chain(MIXED);
    let (_, make) = drivers.clone().find(|(name, _)| *name == cell.surface).ok_or("a surface is unknown")?;
    let (surface, mut scenario) = (cell.surface, named(&cell.scenario, build, scenarios)?);
    if !build.row.driven {
        scenario.config.insert("unset".to_owned(), json!(build.unset()));
    }
    let name = cell.name();
    Ok(Trial::test(name.clone(), move || Ok(held(&name, surface, &scenario, build, &make)?)))
}

/// Runs a trial. The steps that its surface passes over are those that the contract says.
fn held(name: &str, surface: &str, scenario: &Scenario, build: &Build, make: Maker<'_>) -> Result<(), String> {
    let passed_over = trial(name, scenario, build, make)?;
    PASSED_OVER.fetch_add(passed_over, Ordering::Relaxed);
    match absent(surface, build, scenario) {
        absent if absent == passed_over => Ok(()),
        absent => Err(format!("{name}: {passed_over} steps were passed over, but {absent} are absent")),
    }
}

/// A scenario of a build by its name.
fn named(name: &str, build: &Build, scenarios: &[Scenario]) -> Result<Scenario, String> {
    if name == CAPABILITIES {
        return Ok(capabilities(build));
    }
    let found = scenarios.iter().find(|scenario| scenario.name == name);
    found.cloned().ok_or_else(|| format!("there is no scenario {name}"))
}

/// All scenarios of a build, of which that of its capabilities is the first.
fn with_capabilities(build: &Build, scenarios: &[Scenario]) -> Vec<Scenario> {
    [capabilities(build)].into_iter().chain(scenarios.iter().cloned()).collect()
}

/// The steps of a scenario that a surface has no operation for, by the contract. Files are made again only in a build that
/// has what the step needs.
fn absent(surface: &str, build: &Build, scenario: &Scenario) -> usize {
    if !["mcp", "mcp-stdio", "mcp-resource", "two-nodes-mcp"].contains(&surface) {
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
    if !build.row.driven {
        expected.insert("not_set".to_owned(), json!(build.unset()));
    }
    let step = Step { operation: Some(CAPABILITIES.to_owned()), ok: Some(Value::Object(expected)), ..Step::default() };
    Scenario { name: CAPABILITIES.to_owned(), config: Map::new(), steps: vec![step] }
}
