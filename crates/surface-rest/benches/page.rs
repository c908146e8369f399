//! A page of events and a `read` over REST with all guards on, each against a bare axum handler that answers with the
//! same bytes; and the page against the surface alone, which is the price of the guard and of the accept loop with its
//! limits.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets an impossible value stops there")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(dead_code, reason = "the benchmarks share one module and need different parts of it")]

#[path = "../../surface-cli/benches/side_by_side/mod.rs"]
mod side_by_side;

use axum::{Router, routing::get};
use meerkat_service::AgentBuildConfig;
use meerkat_surface_rest::{RestOptions, router};
use side_by_side::{Client, compare, floor, is_floor, meerkat, runtime, session};
use tokio::net::TcpListener;

/// Serves with axum as it comes.
fn serve(answer: impl AsyncFnOnce(TcpListener) -> std::io::Result<()>) {
    runtime().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap().port());
        answer(listener).await.unwrap();
    });
}

fn main() {
    match is_floor() {
        Some((name, _)) if name == "surface" => {
            return serve(async |listener| {
                let agent = AgentBuildConfig::new().build().unwrap();
                let rest = router(agent.service().clone(), RestOptions::default());
                axum::serve(listener, rest).await
            });
        }
        Some((_, page)) => {
            let page = bytes::Bytes::from(page);
            let answer = get(move || async move { ([("content-type", "application/json")], page) });
            return serve(async |listener| axum::serve(listener, Router::new().route("/page", answer)).await);
        }
        None => {}
    }
    let server = meerkat(&[]);
    let asking = |port, id: &str| Client::http(port, &format!("GET /v1/sessions/{id}/events?limit=49"), "", "");
    let id = session(server.port);
    let page = asking(server.port, &id).ask().body;

    let bare = floor("bare", &page);
    let ask_bare = || Client::http(bare.port, "GET /page", "", "");
    assert_eq!(ask_bare().ask().body, page);
    compare("a page over REST", || asking(server.port, &id), "a bare axum handler", ask_bare);

    let reading = || Client::http(server.port, &format!("GET /v1/sessions/{id}"), "", "");
    let view = reading().ask().body;
    let bare_view = floor("bare", &view);
    let ask_view = || Client::http(bare_view.port, "GET /page", "", "");
    assert_eq!(ask_view().ask().body, view);
    compare("a read over REST", reading, "a bare axum handler", ask_view);

    let surface = floor("surface", &[]);
    let same = session(surface.port);
    // The server's sessions have more tools, so a count of tokens may have a digit more.
    assert!(asking(surface.port, &same).ask().body.len().abs_diff(page.len()) < 100);
    compare(
        "a page over REST",
        || asking(server.port, &id),
        "the surface without guard",
        || asking(surface.port, &same),
    );
    drop((server, bare, bare_view, surface));
}
