//! Which trials run: each is a scenario, on a surface, in a build.
//!
//! `cargo test` tries every pair of them: each scenario on each surface, each scenario in each build, each surface in each
//! build. It tries all that are possible in the build with everything, and elsewhere each scenario over the SDK and on one
//! other surface; those of what is missing on each surface of the build with nothing. `MEERKAT_CAMPAIGNS=parity` (or `all`)
//! tries them all. No trial runs here.

use std::collections::BTreeSet;

use crate::{
    builds::THOROUGH,
    drivers::{MIXED, SURFACES, TRANSPORTS, TWO_NODES},
    scenario::Scenario,
};

/// The build with everything.
const FULL: &str = "F";

/// The build with nothing, and the contract's scenarios of what it lacks: there they are tried on each surface.
const NOTHING: &str = "A";
const OF_NOTHING: [&str; 2] = ["001-persistence-disabled", "004-compaction-requested"];

/// Three orders of the mixed surfaces, in which each surface is once in each place.
const ORDERS: [&str; 3] = ["rest-rpc-mcp", "rpc-mcp-rest", "mcp-rest-rpc"];

/// A trial.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// The build.
    pub build: String,
    /// The surface, the transport or the order of mixed surfaces.
    pub surface: &'static str,
    /// The scenario.
    pub scenario: String,
}

impl Cell {
    fn new(build: &str, surface: &'static str, scenario: &str) -> Self {
        Self { build: build.to_owned(), surface, scenario: scenario.to_owned() }
    }

    /// The trial's name.
    pub fn name(&self) -> String {
        format!("{}::{}::{}", self.build, self.surface, self.scenario)
    }
}

/// What is tried, by kind.
#[derive(Debug, Default)]
pub struct Plan {
    /// Scenarios on surfaces.
    pub surfaces: Vec<Cell>,
    /// Scenarios on other transports of some surfaces. A transport does not depend on the capabilities of a build.
    pub transports: Vec<Cell>,
    /// Scenarios on surfaces of one process in turn.
    pub mixed: Vec<Cell>,
}

impl Plan {
    /// Plans the trials of these builds and scenarios; `mixable` are the scenarios for mixed surfaces.
    pub fn of(builds: &[&str], scenarios: &[&str], mixable: &[&str], is_whole: bool) -> Self {
        let mut plan = Self::default();
        for (round, build) in builds.iter().enumerate() {
            let is_full = *build == FULL || is_whole;
            let is_everywhere = |name: &str| is_full || (*build == NOTHING && OF_NOTHING.contains(&name));
            for (at, (surface, _)) in SURFACES.into_iter().enumerate() {
                let of_surface =
                    scenarios.iter().filter(|name| is_everywhere(name) || at == 0 || at == turn(name, round));
                plan.surfaces.extend(of_surface.map(|name| Cell::new(build, surface, name)));
            }
            if *build != FULL && !(is_whole && THOROUGH.contains(build)) {
                continue;
            }
            for (transport, _) in TRANSPORTS {
                plan.transports.extend(scenarios.iter().map(|name| Cell::new(build, transport, name)));
            }
            for (order, _) in MIXED.into_iter().filter(|(order, _)| is_whole || ORDERS.contains(order)) {
                plan.mixed.extend(mixable.iter().map(|name| Cell::new(build, order, name)));
            }
        }
        plan
    }
}

/// The scenarios of a build that is not driven: all of them, on the SDK.
pub fn undriven(build: &str, scenarios: &[&str]) -> Vec<Cell> {
    scenarios.iter().map(|name| Cell::new(build, SURFACES[0].0, name)).collect()
}

/// The place in `SURFACES` of the one surface beside the SDK on which a scenario runs in a build. From build to build it
/// goes on by one.
fn turn(scenario: &str, round: usize) -> usize {
    // FNV-1a, which gives the same number on every machine.
    let hash = scenario
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
    let others = SURFACES.len() - 1;
    1 + (usize::try_from(hash >> 32).unwrap_or_default() + round) % others
}

/// Scenarios of the files for people, whose folder belongs to one node, so that two cannot play them by turns.
const OF_ONE_NODE: [&str; 2] = ["050-projection", "058-compaction-restart"];

/// Scenarios of live events. A command line shows those of the turns of its chat, and to the other node goes a process of
/// its own.
const OF_ONE_CHAT: [&str; 2] = ["012-interrupt", "034-live-events"];

/// Scenario of a data directory, which a service over a database does not have.
const OF_A_DIRECTORY: &str = "077-diagnosis";

/// Scenarios over MCP on two nodes beside those that ask for each operation.
const OVER_MCP: usize = 2;

/// What is tried over a database.
#[derive(Debug, Default)]
pub struct OverDatabase {
    /// On one node: the surface and the scenario. `cargo test` has none of these.
    pub on_one: Vec<(&'static str, String)>,
    /// On two nodes, each step on the other one: the surface and the scenario.
    pub on_two: Vec<(&'static str, String)>,
}

impl OverDatabase {
    /// Plans the trials over a database: on two nodes scenarios that have every operation, each on one surface in turn, and
    /// two over MCP; or every scenario on every surface, on one node and on two.
    pub fn of(scenarios: &[Scenario], is_whole: bool) -> Self {
        let over_database = scenarios.iter().filter(|scenario| scenario.name != OF_A_DIRECTORY);
        let shared: Vec<&Scenario> = over_database.clone().filter(|scenario| is_shared(scenario)).collect();
        let mut plan = Self::default();
        if is_whole {
            for (surface, _) in SURFACES {
                plan.on_one.extend(over_database.clone().map(|scenario| (surface, scenario.name.clone())));
            }
            for (surface, _) in TWO_NODES {
                let is_playable = |name: &str| surface != "cli" || !OF_ONE_CHAT.contains(&name);
                let playable = shared.iter().filter(|scenario| is_playable(&scenario.name));
                plan.on_two.extend(playable.map(|scenario| (surface, scenario.name.clone())));
            }
            return plan;
        }
        // Over MCP operators' operations are passed over.
        let operators = TWO_NODES.map(|(surface, _)| surface).into_iter().filter(|surface| *surface != "mcp");
        let chosen = each_operation(&shared);
        plan.on_two.extend(operators.cycle().zip(chosen.iter().map(|name| (*name).to_owned())));
        let more = shared.iter().filter(|scenario| !chosen.contains(&scenario.name.as_str()));
        plan.on_two.extend(more.take(OVER_MCP).map(|scenario| ("mcp", scenario.name.clone())));
        plan
    }
}

/// Returns true if both nodes have the scenario's sessions.
fn is_shared(scenario: &Scenario) -> bool {
    let is_off = scenario.config.get("store").is_some_and(|store| store["enabled"] == false);
    !is_off && !OF_ONE_NODE.contains(&scenario.name.as_str())
}

/// The operations that a scenario asks for.
fn operations(scenario: &Scenario) -> BTreeSet<&str> {
    scenario.steps.iter().filter_map(|step| step.operation.as_deref()).collect()
}

/// Names few scenarios that together ask for every operation.
fn each_operation<'a>(scenarios: &[&'a Scenario]) -> Vec<&'a str> {
    let mut left: BTreeSet<&str> = scenarios.iter().flat_map(|scenario| operations(scenario)).collect();
    let mut chosen = Vec::new();
    while !left.is_empty() {
        let best = scenarios.iter().max_by_key(|scenario| operations(scenario).intersection(&left).count());
        let Some(best) = best else { break };
        let met = operations(best);
        left.retain(|operation| !met.contains(operation));
        chosen.push(best.name.as_str());
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{builds, scenario};

    fn surfaces() -> Vec<&'static str> {
        SURFACES.iter().map(|(surface, _)| *surface).collect()
    }

    /// The pairs of build, surface and scenario that no cell has.
    fn lost(cells: &[Cell], builds: &[&str], scenarios: &[&str]) -> Vec<String> {
        let mut lost = Vec::new();
        let mut look = |one: &str, other: &str, has: &dyn Fn(&Cell) -> bool| {
            if !cells.iter().any(has) {
                lost.push(format!("{one} with {other}"));
            }
        };
        for scenario in scenarios {
            for surface in surfaces() {
                look(scenario, surface, &|cell| cell.scenario == *scenario && cell.surface == surface);
            }
            for build in builds {
                look(scenario, build, &|cell| cell.scenario == *scenario && cell.build == *build);
            }
        }
        for build in builds {
            for surface in surfaces() {
                look(build, surface, &|cell| cell.build == *build && cell.surface == surface);
            }
        }
        lost
    }

    /// Plans those of the disk: names of builds and scenarios, and both plans.
    fn check(look: impl Fn(&[&str], &[&str], &Plan, &Plan)) {
        let (builds, scenarios) = (builds::all().unwrap(), scenario::all().unwrap());
        let driven = builds.iter().filter(|build| build.row.driven && !build.has_database());
        let builds: Vec<&str> = driven.map(|build| build.name.as_str()).collect();
        let scenarios: Vec<&str> = scenarios.iter().map(|scenario| scenario.name.as_str()).collect();
        let plan = |is_whole| Plan::of(&builds, &scenarios, &scenarios[..3], is_whole);
        look(&builds, &scenarios, &plan(false), &plan(true));
    }

    #[test]
    fn no_pair_is_lost() {
        check(|builds, scenarios, pairs, _| {
            assert_eq!(builds, ["A", "B", "C", "D", "E", "F"]);
            assert_eq!(lost(&pairs.surfaces, builds, scenarios), [""; 0]);
            // The check sees each pair of them that is missing.
            let without = |is_lost: &dyn Fn(&Cell) -> bool| -> Vec<String> {
                let kept: Vec<Cell> = pairs.surfaces.iter().filter(|cell| !is_lost(cell)).cloned().collect();
                lost(&kept, builds, scenarios)
            };
            let first = scenarios[0];
            let seen = without(&|cell| cell.scenario == first && cell.build == "C");
            assert_eq!(seen, [format!("{first} with C")]);
            assert_eq!(without(&|cell| cell.surface == "rpc" && cell.build == "D"), ["D with rpc"]);
            let seen = without(&|cell| cell.scenario == first && cell.surface == "mcp");
            assert_eq!(seen, [format!("{first} with mcp")]);
        });
    }

    #[test]
    fn the_whole_plan_has_everything_and_pairs_are_a_part_of_it() {
        check(|builds, scenarios, pairs, whole| {
            let distinct = |cells: &[Cell]| cells.iter().collect::<BTreeSet<_>>().len();
            let (each, all) = (scenarios.len(), [whole.surfaces.len(), whole.transports.len(), whole.mixed.len()]);
            assert_eq!(all, [builds.len() * 5 * each, 2 * 6 * each, 2 * 6 * 3]);
            let some = [pairs.surfaces.len(), pairs.transports.len(), pairs.mixed.len()];
            let more = 3 * OF_NOTHING.len();
            assert_eq!(some, [5 * each + (builds.len() - 1) * 2 * each + more, 6 * each, 3 * 3]);
            for (whole, pairs) in [
                (&whole.surfaces, &pairs.surfaces),
                (&whole.transports, &pairs.transports),
                (&whole.mixed, &pairs.mixed),
            ] {
                assert_eq!((distinct(whole), distinct(pairs)), (whole.len(), pairs.len()), "nothing runs twice");
                assert!(pairs.iter().all(|cell| whole.contains(cell)));
            }
        });
    }

    #[test]
    fn what_a_build_lacks_is_asked_for_on_each_surface() {
        check(|_, _, pairs, _| {
            for scenario in OF_NOTHING {
                let of_nothing = pairs.surfaces.iter().filter(|it| it.build == NOTHING && it.scenario == scenario);
                assert_eq!(of_nothing.map(|cell| cell.surface).collect::<Vec<_>>(), surfaces(), "{scenario}");
            }
        });
    }

    #[test]
    fn each_surface_is_once_in_each_place_of_the_mixed_orders() {
        let places = ORDERS.iter().flat_map(|order| order.split('-').enumerate()).collect::<BTreeSet<_>>();
        assert_eq!(places.len(), 9);
        assert!(ORDERS.iter().all(|order| MIXED.iter().any(|(name, _)| name == order)));
    }

    #[test]
    fn every_operation_is_asked_for_on_two_nodes() {
        let scenarios = scenario::all().unwrap();
        let find = |name: &str| scenarios.iter().find(|scenario| scenario.name == name).unwrap();
        let asked = |plan: &OverDatabase, is_meant: &dyn Fn(&str) -> bool| -> BTreeSet<&str> {
            let meant = plan.on_two.iter().filter(|(surface, _)| is_meant(surface));
            meant.flat_map(|(_, name)| operations(find(name))).collect()
        };
        let (few, whole) = (OverDatabase::of(&scenarios, false), OverDatabase::of(&scenarios, true));
        assert_eq!(asked(&few, &|surface| surface != "mcp"), asked(&whole, &|_| true));
        for (surface, _) in TWO_NODES {
            assert!(few.on_two.iter().any(|(of, _)| *of == surface), "{surface}");
        }
        let (each, shared) = (scenarios.len() - 1, scenarios.iter().filter(|scenario| is_shared(scenario)).count() - 1);
        assert_eq!(whole.on_one.len(), 5 * each);
        assert_eq!(whole.on_two.len(), 5 * shared - OF_ONE_CHAT.len());
    }
}
