//! The product's tables and `contract.toml` say the same.

use std::collections::{BTreeMap, BTreeSet};

use meerkat_errors::ErrorCode;
use meerkat_parity_tests::contract::{Numbers, read};
use meerkat_service::Operation;
use meerkat_surface_mcp::tools::{Spelling, spelling};
use meerkat_surface_rpc::{Method, methods};

/// Holds two tables against each other, both ways: a line for each row that differs.
fn differences<T: PartialEq + std::fmt::Debug>(
    what: &str,
    contract: &BTreeMap<String, T>,
    product: &BTreeMap<String, T>,
) -> Vec<String> {
    let names: BTreeSet<&String> = contract.keys().chain(product.keys()).collect();
    let differ = names.into_iter().filter(|name| contract.get(*name) != product.get(*name));
    let rows = differ.map(|name| {
        format!("{what}: {name}: contract.toml says {:?}, the product {:?}", contract.get(name), product.get(name))
    });
    rows.collect()
}

#[test]
fn each_error_has_its_numbers() {
    let contract = read().unwrap();
    let numbers = |code: &ErrorCode| {
        let numbers = Numbers { http: code.http_status(), rpc: code.rpc_code(), exit: code.exit_code() };
        (code.as_str().to_owned(), numbers)
    };
    let product = ErrorCode::ALL.iter().map(numbers).collect();
    assert_eq!(differences("numbers of errors", &contract.errors, &product), [""; 0]);
}

#[test]
fn each_operation_is_spelt_on_each_surface() {
    let contract = read().unwrap();
    let spelt = |of: fn(&meerkat_parity_tests::contract::Spelling) -> String| -> BTreeMap<String, String> {
        contract.operations.iter().map(|(name, spelling)| (name.clone(), of(spelling))).collect()
    };
    let named = |operation: Operation, spelt: String| (operation.name().to_owned(), spelt);

    let of_operations = methods().filter_map(|(name, method)| match method {
        Method::Operation(operation) => Some(named(operation, name.to_owned())),
        _ => None,
    });
    let mut found = differences("methods of JSON-RPC", &spelt(|it| it.rpc.clone()), &of_operations.collect());
    // `meerkat call` takes the public name; the trials of the command line call each of them.
    let of_call = Operation::ALL.iter().map(|operation| named(*operation, operation.public_name().to_owned()));
    found.extend(differences("operations of `meerkat call`", &spelt(|it| it.rpc.clone()), &of_call.collect()));
    let beside = methods().filter(|(_, method)| !matches!(method, Method::Operation(_)));
    let beside: BTreeSet<&str> = beside.map(|(name, _)| name).collect();
    assert_eq!(contract.beside.rpc.iter().map(String::as_str).collect::<BTreeSet<_>>(), beside);

    let tools = Operation::ALL.iter().map(|operation| match spelling(*operation) {
        Spelling::Tool { name, .. } => named(*operation, format!("the tool {name}")),
        Spelling::NoTool { reason } => named(*operation, format!("no tool: {reason}")),
    });
    let tool = |it: &meerkat_parity_tests::contract::Spelling| match (&it.mcp, &it.no_mcp) {
        (Some(tool), None) => format!("the tool {tool}"),
        (None, Some(reason)) => format!("no tool: {reason}"),
        _ => "either a tool or a reason, and not both".to_owned(),
    };
    found.extend(differences("tools of MCP", &spelt(tool), &tools.collect()));

    let route = |route: &meerkat_surface_rest::Route| {
        let switch = route.switch.filter(|(_, value)| *value).map(|(name, value)| format!("{name}={value}"));
        let query: Vec<String> = route.query.iter().map(|name| (*name).to_owned()).chain(switch).collect();
        let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
        named(route.operation, format!("{} {}{query}", route.method, route.full_path()))
    };
    let rest = |it: &meerkat_parity_tests::contract::Spelling| {
        let query: Vec<String> = it.rest.query.iter().chain(&it.rest.switch).cloned().collect();
        let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
        format!("{} {}{query}", it.rest.method, it.rest.path)
    };
    let routes = meerkat_surface_rest::table().iter().map(route).collect();
    found.extend(differences("routes of REST", &spelt(rest), &routes));
    assert_eq!(found, [""; 0]);
}
