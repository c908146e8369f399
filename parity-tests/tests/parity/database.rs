//! The scenarios over a database of their own: on one node, and on two, each step on the other one.

use std::sync::atomic::Ordering;

use libtest_mimic::Trial;
use meerkat_parity_tests::{
    Database, Driver, Place,
    builds::Build,
    drivers::{Make, SURFACES, TWO_NODES},
    plan::OverDatabase,
    scenario::Scenario,
};

use meerkat_testkit::can_run;

use crate::{WITHOUT_DATABASE, cluster, held, named};

/// The planned trials of the build with a database.
pub(crate) fn trials(build: &'static Build, scenarios: &[Scenario], plan: &OverDatabase) -> Result<Vec<Trial>, String> {
    let on_one = plan.on_one.iter().map(|(surface, scenario)| ((*surface).to_owned(), *surface, &SURFACES, scenario));
    let on_two = plan.on_two.iter().map(|(surface, name)| (format!("two-nodes-{surface}"), *surface, &TWO_NODES, name));
    let mut trials = Vec::new();
    for (name, surface, drivers, scenario) in on_one.chain(on_two) {
        let (_, make) = drivers.iter().find(|(driven, _)| *driven == surface).ok_or("a surface is unknown")?;
        trials.push(over_database(build, name, *make, named(scenario, build, scenarios)?));
    }
    Ok(trials)
}

fn over_database(build: &'static Build, surface: String, make: Make, scenario: Scenario) -> Trial {
    let name = format!("{}::{surface}::{}", build.name, scenario.name);
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
        Ok(held(&name, &surface, &scenario, build, &over)?)
    })
}
