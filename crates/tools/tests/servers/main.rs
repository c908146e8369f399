//! The pool against servers of the official library, as processes and over HTTP on loopback.
//!
//! This program is its own launcher, and its own server: it is started again with other arguments.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that meets an impossible value stops there")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a server talks over its output")]

mod bounds;
mod calls;
mod hostile;
mod issuer;
mod lists;
mod logins;
mod pool;
mod processes;
mod questions;
mod server;
mod support;

use libtest_mimic::{Arguments, Trial};

/// A test: its name, and what it does on a runtime of its own.
type Test = (&'static str, fn() -> futures::future::LocalBoxFuture<'static, ()>);

/// Lists tests by name.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub(crate) const TESTS: &[$crate::Test] = &[$((concat!(module_path!(), "::", stringify!($name)), || Box::pin($name()))),*];
    };
}

fn main() {
    meerkat_tools::launcher();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == server::MARK) {
        match &arguments[1..] {
            [folder, parent, manner] if parent == "parent" => processes::parent(folder.as_ref(), manner),
            arguments => server::main(arguments),
        }
        return;
    }
    let tests = [
        bounds::TESTS,
        calls::TESTS,
        lists::TESTS,
        pool::TESTS,
        processes::TESTS,
        hostile::TESTS,
        logins::TESTS,
        questions::TESTS,
    ]
    .concat();
    let trials = tests.into_iter().map(|(name, test)| {
        Trial::test(name.trim_start_matches("servers::"), move || {
            support::runtime().block_on(tokio::task::LocalSet::new().run_until(test()));
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}
