//! What it costs to start: `--version`, `run` in memory, over a store and into a new one, and `serve` to its first
//! answer, side by side with a process spawn and the raw syncs that they cannot do without, in one interleaved run; and
//! how much memory and disk the binary takes. A `run` with ten configured servers, whose tools are known, is compared with
//! one without any.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets an impossible value stops there")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(dead_code, reason = "the benchmarks share one module and need different parts of it")]

mod side_by_side;

use std::{
    fs::File,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use side_by_side::{Client, binary, median, meerkat_over};

const ROUNDS: usize = 100;
const WARM_UP: usize = 10;
/// Syncs one after another, as `strace -e fsync,fdatasync` shows them: of a `run` over a store that is there, of one that
/// makes its store, and of a server that opens one.
const RUN_SYNCS: usize = 10;
const NEW_SYNCS: usize = 24;
const SERVE_SYNCS: usize = 0;
/// Configured servers.
const SERVERS: usize = 10;

/// One start in a folder, from the spawn to the end of the process. Without a home folder there is no configuration.
fn start(folder: &Path, program: &Path, args: &[&str], data_dir: &Path, home: Option<&Path>) -> Duration {
    let mut command = Command::new(program);
    // An empty environment: no key, and files for people only within the store's folder.
    command.args(args).env_clear().env("MEERKAT_DATA_DIR", data_dir).current_dir(folder);
    command.env("MEERKAT_PROJECTION__DIR", data_dir.join("rkat")).envs(home.map(|home| ("HOME", home)));
    let started = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    let took = started.elapsed();
    assert!(status.success(), "{command:?} failed");
    took
}

/// Configures servers in a home folder, and has their tools listed. Each is the program itself.
fn configure_servers(nowhere: &Path, home: &Path, program: &Path, store: &Path) {
    let folder = home.join(".config/meerkat");
    std::fs::create_dir_all(&folder).unwrap();
    let servers = (0..SERVERS).map(|number| {
        // Each has a definition of its own, so that each has a list of its own.
        let rest = format!("args = [\"--ephemeral\", \"mcp\"]\nenv = {{ N = \"{number}\" }}\n");
        format!("[servers.s{number}]\ncommand = {program:?}\n{rest}")
    });
    std::fs::write(folder.join("meerkat.toml"), servers.collect::<String>()).unwrap();
    for number in 0..SERVERS {
        start(nowhere, program, &["servers", "check", &format!("s{number}")], store, Some(home));
    }
}

/// From the spawn of a server to its first answer, and its memory then.
fn serve(data_dir: &Path) -> (Duration, u64) {
    let started = Instant::now();
    let server = meerkat_over(data_dir, &[]);
    let answer = Client::http(server.port, "GET /healthz", "", "").ask();
    let took = started.elapsed();
    assert!(answer.head.starts_with("http/1.1 200"), "{}", answer.head);
    (took, server.resident())
}

fn main() {
    // Beneath the target folder: the syncs are to reach a disk.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (store, program) = (folder.path().join("store"), binary());
    let mut raw = File::create(folder.path().join("raw")).unwrap();
    let mut sync = || {
        let started = Instant::now();
        raw.write_all(&[b'x'; 1024]).unwrap();
        raw.sync_data().unwrap();
        started.elapsed()
    };
    let (none, servers) = (folder.path().join("none"), folder.path().join("servers"));
    std::fs::create_dir(&none).unwrap();
    // The target folder may be in a repository, whose state a turn would ask for.
    let outside = tempfile::tempdir().unwrap();
    let (nowhere, repository) = (outside.path().join("folder"), outside.path().join("repository"));
    std::fs::create_dir(&nowhere).unwrap();
    assert!(Command::new("git").arg("init").arg("-q").arg(&repository).status().unwrap().success());
    configure_servers(&nowhere, &servers, &program, &store);
    let start = |args: &[&str], data_dir: &Path, home: Option<&Path>| start(&nowhere, &program, args, data_dir, home);
    let mut times: [Vec<Duration>; 10] = Default::default();
    let mut memory = Vec::new();
    for round in 0..WARM_UP + ROUNDS {
        let new = folder.path().join(format!("new{round}"));
        let (served, resident) = serve(&store);
        let took = [
            self::start(&nowhere, Path::new("/bin/true"), &[], &store, None),
            sync(),
            start(&["--version"], &store, None),
            start(&["--ephemeral", "run", "hello"], &store, None),
            self::start(&repository, &program, &["--ephemeral", "run", "hello"], &store, None),
            start(&["run", "hello"], &store, None),
            start(&["run", "hello"], &new, None),
            served,
            start(&["run", "hello"], &store, Some(&none)),
            start(&["run", "hello"], &store, Some(&servers)),
        ];
        if round >= WARM_UP {
            times.iter_mut().zip(took).for_each(|(times, took)| times.push(took));
            memory.push(resident);
        }
    }
    let [spawn, sync, version, ephemeral, in_repository, run, new, served, without, with] =
        times.map(|mut times| median(&mut times));
    println!("a process spawn (/bin/true): {spawn:.2?}; a raw write and sync of 1 KiB: {sync:.1?}");
    for (name, time, syncs) in [
        ("meerkat --version", version, 0),
        ("meerkat --ephemeral run hello", ephemeral, 0),
        ("the same in a repository, whose branch and changes the model is told", in_repository, 0),
        ("meerkat run hello, over a store", run, RUN_SYNCS),
        ("meerkat run hello, into a new store", new, NEW_SYNCS),
        ("meerkat serve, to its first 200", served, SERVE_SYNCS),
    ] {
        let floor = spawn + sync * u32::try_from(syncs).unwrap();
        println!(
            "{name}: {time:.2?}; the spawn and {syncs} syncs: {floor:.2?}; {:.2} x, {:.2?} more",
            time.as_secs_f64() / floor.as_secs_f64(),
            time.saturating_sub(floor)
        );
    }
    let ratio = with.as_secs_f64() / without.as_secs_f64();
    println!("meerkat run hello with {SERVERS} listed servers: {with:.2?}; without any: {without:.2?}; {ratio:.2} x");
    println!("a server that has answered once: {:.1} MB resident", median(&mut memory) as f64 / 1e6);
    println!(
        "the binary: {:.1} MB, stripped {:.1} MB",
        megabytes(&program),
        megabytes(&stripped(&program, folder.path()))
    );
}

fn stripped(program: &Path, folder: &Path) -> std::path::PathBuf {
    let stripped = folder.join("stripped");
    assert!(Command::new("strip").arg("-o").arg(&stripped).arg(program).status().unwrap().success());
    stripped
}

fn megabytes(file: &Path) -> f64 {
    std::fs::metadata(file).unwrap().len() as f64 / 1e6
}
