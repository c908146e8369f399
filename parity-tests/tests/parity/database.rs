//! The scenarios over a database of their own: on one node, and on two, each step on the other one.
//!
//! `cargo test` runs, on two nodes, scenarios that have every operation, each on one surface in turn, and two over MCP. `MEERKAT_CAMPAIGNS=nodes` (or
//! `all`) runs every scenario on every surface, on one node and on two.

use std::{collections::BTreeSet, sync::atomic::Ordering};

use libtest_mimic::Trial;
use meerkat_parity_tests::{
    Database, Driver, Place,
    builds::Build,
    drivers::{Make, SURFACES, TWO_NODES},
    run::trial,
    scenario::Scenario,
};

use meerkat_testkit::can_run;

use crate::{WITHOUT_DATABASE, capabilities, cluster};

/// Scenarios of the files for people, whose folder belongs to one node, so that two cannot play them by turns.
const OF_ONE_NODE: [&str; 2] = ["050-projection", "058-compaction-restart"];

/// Scenarios of live events. A command line shows those of the turns of its chat, and to the other node goes a process of
/// its own.
const OF_ONE_CHAT: [&str; 2] = ["012-interrupt", "034-live-events"];

/// Scenario of a data directory, which a service over a database does not have.
const OF_A_DIRECTORY: &str = "077-diagnosis";

/// Returns true if both nodes have the scenario's sessions.
fn is_shared(scenario: &Scenario) -> bool {
    let is_off = scenario.config.get("store").is_some_and(|store| store["enabled"] == false);
    !is_off && !OF_ONE_NODE.contains(&scenario.name.as_str())
}

/// All trials of the build with a database.
pub(crate) fn trials(build: &'static Build, scenarios: &[Scenario]) -> Vec<Trial> {
    let asked = std::env::var("MEERKAT_CAMPAIGNS").unwrap_or_default();
    let is_whole = asked.split(',').any(|part| part == "nodes" || part == "all");
    let listed = scenarios.iter().filter(|scenario| scenario.name != OF_A_DIRECTORY).cloned();
    let scenarios: Vec<Scenario> = [capabilities(build)].into_iter().chain(listed).collect();
    let shared: Vec<&Scenario> = scenarios.iter().filter(|scenario| is_shared(scenario)).collect();
    let mut trials = Vec::new();
    if is_whole {
        for (surface, make) in SURFACES {
            trials.extend(scenarios.iter().map(|scenario| over_database(build, surface, make, scenario)));
        }
    }
    // Over MCP operators' operations are passed over.
    let operators: Vec<_> = TWO_NODES.iter().filter(|(surface, _)| *surface != "mcp").collect();
    let chosen = each_operation(&shared);
    for (surface, make) in &TWO_NODES {
        let of_surface = |at: usize, scenario: &Scenario| match chosen.iter().position(|name| *name == scenario.name) {
            _ if is_whole => *surface != "cli" || !OF_ONE_CHAT.contains(&scenario.name.as_str()),
            Some(turn) => operators[turn % operators.len()].0 == *surface,
            None => *surface == "mcp" && at < 2,
        };
        let wanted = shared.iter().enumerate().filter(|(at, scenario)| of_surface(*at, scenario));
        let name = format!("two-nodes-{surface}");
        trials.extend(wanted.map(|(_, scenario)| over_database(build, &name, *make, scenario)));
    }
    trials
}

/// Names few scenarios that together ask for every operation.
fn each_operation<'a>(scenarios: &[&'a Scenario]) -> Vec<&'a str> {
    let of = |scenario: &Scenario| -> BTreeSet<String> {
        scenario.steps.iter().filter_map(|step| step.operation.clone()).collect()
    };
    let mut left: BTreeSet<String> = scenarios.iter().flat_map(|scenario| of(scenario)).collect();
    let mut chosen = Vec::new();
    while !left.is_empty() {
        let best = scenarios.iter().max_by_key(|scenario| of(scenario).intersection(&left).count());
        let Some(best) = best else { break };
        left.retain(|operation| !of(best).contains(operation));
        chosen.push(best.name.as_str());
    }
    chosen
}

fn over_database(build: &'static Build, surface: &str, make: Make, scenario: &Scenario) -> Trial {
    let name = format!("{}::{surface}::{}", build.name, scenario.name);
    let scenario = scenario.clone();
    Trial::test(name.clone(), move || {
        if !can_run(cluster::NEEDED, cluster::is_here()) {
            WITHOUT_DATABASE.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let database = cluster::fresh();
        let (url, schema) = (database.cluster.url("meerkat", "postgres"), database.schema);
        let over = move |place: Place| -> Result<Box<dyn Driver>, String> {
            let database = Database { url: url.clone(), schema: schema.clone(), node: 0 };
            make(Place { database: Some(database), ..place })
        };
        trial(&name, &scenario, build, &over)?;
        Ok(())
    })
}
