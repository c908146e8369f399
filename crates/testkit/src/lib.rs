//! What tests share: how they wait, where their chance comes from, where their files are, and what they do without a
//! program that they need.
//!
//! Only tests and benches depend on this crate.

#![expect(clippy::disallowed_methods, reason = "patience is with the machine, and no part of what is tested")]

pub mod campaigns;

use std::{
    io::Write as _,
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use proptest::test_runner::{Config, RngSeed};
use rustix::fs::{StatVfsMountFlags, statvfs};
use tempfile::TempDir;

use campaigns::Part;

/// Longer than anything in a test takes, also on a busy machine. A test that waited this long in vain has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Time between two looks at what is waited for: the tested process needs the core more than the one that waits.
const PAUSE: Duration = Duration::from_millis(5);

/// Seed of a run in which `MEERKAT_SEED` names no other.
const SEED: u64 = 0x5EED;

/// Waits until something is so, and panics with `what` after [`PATIENCE`].
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    until_some(what, || is_so().then_some(()));
}

/// Waits until there is a value, and panics with `what` after [`PATIENCE`].
#[track_caller]
pub fn until_some<T>(what: &str, mut value: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = value() {
            return value;
        }
        assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
        std::thread::sleep(PAUSE);
    }
}

/// Waits until something is so while the other tasks of the runtime run. Its clock must not be paused.
pub async fn until_async(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until something is so that must be asked for. The runtime's clock must not be paused.
pub async fn until_asked(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    until_got(what, async || is_so().await.then_some(())).await;
}

/// Waits until what is asked for is there. The runtime's clock must not be paused.
pub async fn until_got<T>(what: &str, mut value: impl AsyncFnMut() -> Option<T>) -> T {
    let asks = async {
        loop {
            if let Some(value) = value().await {
                return value;
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    in_time(what, asks).await
}

/// Gives a future [`PATIENCE`] to end, and panics with `what` after it. The runtime's clock must not be paused.
pub async fn in_time<T>(what: &str, work: impl Future<Output = T>) -> T {
    let Ok(value) = tokio::time::timeout(PATIENCE, work).await else {
        panic!("waited {PATIENCE:?} in vain: {what}");
    };
    value
}

/// Returns an address of this machine that refuses every connection until the test itself listens there: its port is
/// taken as long as this program runs, so no other test gets it, and nothing listens.
///
/// # Panics
///
/// If there is no free port.
pub fn refusing_address() -> SocketAddr {
    let taken = tokio::net::TcpSocket::new_v4().and_then(|socket| {
        // A listener, which sets this too, may have the port beside a socket that does not listen.
        socket.set_reuseaddr(true)?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        Ok(socket)
    });
    let Ok(socket) = taken else { panic!("no port is free") };
    let Ok(address) = socket.local_addr() else { panic!("a socket without an address") };
    std::mem::forget(socket);
    address
}

/// Free memory below which folders are on the disk: each takes some megabytes, and many tests run side by side.
const FREE_BYTES_MIN: u64 = 1 << 30;

/// Makes an empty folder, which goes with the value. It is in memory if the system has room there and lets programs start
/// there: no test outlives the machine, so none has to wait for a disk.
///
/// A test of a real disk takes a folder of `tempfile`, and so does one whose commands are confined, for they have other
/// memory there.
///
/// # Panics
///
/// If no folder can be made.
pub fn folder() -> TempDir {
    let has_room = statvfs("/dev/shm").is_ok_and(|memory| {
        memory.f_bavail * memory.f_frsize >= FREE_BYTES_MIN && !memory.f_flag.contains(StatVfsMountFlags::NOEXEC)
    });
    let place = if has_room { "/dev/shm".into() } else { std::env::temp_dir() };
    match tempfile::Builder::new().prefix("meerkat-").tempdir_in(&place) {
        Ok(folder) => folder,
        Err(error) => panic!("no folder for a test can be made in {}: {error}", place.display()),
    }
}

/// Seed of this run: `MEERKAT_SEED`, or a fixed one. It is printed, so that a failed test shows it.
#[expect(clippy::print_stdout, reason = "the harness shows it if the test fails, and else keeps it")]
pub fn seed() -> u64 {
    let seed = match std::env::var("MEERKAT_SEED") {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("MEERKAT_SEED is {text:?}, which is not a whole number")),
        Err(_) => SEED,
    };
    println!("MEERKAT_SEED={seed}");
    seed
}

/// Settings of a property, by the [`seed`] of this run. It is tried so often in the campaign `properties`, and else a tenth
/// as often.
pub fn cases(whole: u32) -> Config {
    cases_of(Part::Properties, whole)
}

/// As [`cases`], in the campaign of another part.
pub fn cases_of(part: Part, whole: u32) -> Config {
    Config { failure_persistence: None, ..settings(part, whole) }
}

/// As [`cases`], after those that its crate's folder `proptest-regressions` has.
pub fn cases_and_regressions(whole: u32) -> Config {
    settings(Part::Properties, whole)
}

fn settings(part: Part, whole: u32) -> Config {
    let cases = u32::try_from(part.share(whole.into())).unwrap_or(whole);
    Config { cases, rng_seed: RngSeed::Fixed(seed()), ..Config::default() }
}

/// Random numbers by a seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Begins with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }
}

/// Says whether a test can run here. Where it cannot, it names what is missing on standard error, past the capture of
/// the test's output; with `MEERKAT_REQUIRE=all` the test fails.
#[track_caller]
pub fn can_run(needed: &str, is_here: bool) -> bool {
    if !is_here {
        let is_required = std::env::var("MEERKAT_REQUIRE").is_ok_and(|value| value == "all");
        assert!(!is_required, "this test needs {needed}, and MEERKAT_REQUIRE=all says that it must run");
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        let line = format!("NOT RUN: {test}: it needs {needed}.\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap_or_default();
    }
    is_here
}

/// Returns true if a program of this name is in the PATH.
pub fn has_program(name: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(name).is_file()))
}

/// Ends a test where this machine lacks what it needs: programs by name, or anything else with its condition.
#[macro_export]
macro_rules! needs {
    ($($program:literal),+ $(,)?) => {
        $(if !$crate::can_run($program, $crate::has_program($program)) {
            return;
        })+
    };
    ($needed:expr => $is_here:expr) => {
        if !$crate::can_run($needed, $is_here) {
            return;
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_when_it_is_so() {
        let mut looks = 0;
        until("the third look", || {
            looks += 1;
            looks == 3
        });
        assert_eq!(looks, 3);
    }

    #[test]
    fn a_seed_gives_the_same_numbers_again() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            [random.number(), random.number(), random.below(10)]
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
    }

    #[test]
    fn an_address_refuses_until_the_test_listens_there() {
        let address = refusing_address();
        let refused = || std::net::TcpStream::connect(address).map_err(|error| error.kind()).map(drop);
        for _ in 0..2 {
            assert_eq!(refused(), Err(std::io::ErrorKind::ConnectionRefused));
            let _listening = std::net::TcpListener::bind(address).unwrap();
            assert_eq!(refused(), Ok(()));
        }
    }

    #[tokio::test]
    async fn a_wait_for_an_answer_ends_when_it_is_so() {
        let mut looks = 0;
        until_asked("the third look", async || {
            looks += 1;
            looks == 3
        })
        .await;
        assert_eq!(looks, 3);
    }

    #[test]
    fn what_is_missing_ends_the_test() {
        fn reaches_its_end() -> bool {
            let mut is_at_end = false;
            let mut body = || {
                needs!("nothing" => false);
                is_at_end = true;
            };
            body();
            is_at_end
        }
        if std::env::var_os("MEERKAT_REQUIRE").is_none() {
            assert!(!reaches_its_end());
        }
        assert!(has_program("sh"));
        assert!(!has_program("a program that nobody has"));
    }
}
