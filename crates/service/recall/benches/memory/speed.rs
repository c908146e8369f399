//! Costs of many messages through the public contract: adding, searching with and without filters, reloading against
//! reading the files, memory and file sizes.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use meerkat_recall::{builtin_embedder, open_memory};
use meerkat_words::{
    clock::Timestamp,
    memory::{Intake, MemoryOptions, SharedMemory},
    requests::{ForgetMemory, SearchMemory},
};

use super::{
    book::Book,
    corpus::{Size, generate},
    option,
    random::Random,
    ways::request,
};

/// Variable with the part for a fresh process.
pub(crate) const ROLE: &str = "MEERKAT_BENCH_ROLE";
const PLACE: &str = "MEERKAT_BENCH_PLACE";
const MESSAGES: &str = "MEERKAT_BENCH_MESSAGES";
const VECTORS: &str = "MEERKAT_BENCH_VECTORS";

/// Messages added at once, about.
const BATCH: usize = 300;
/// Searches of each kind.
const SEARCHES: usize = 300;
const ROUNDS: usize = 5;
/// Number of words to draw from, few of them often and most of them seldom.
const VOCABULARY: usize = 60_000;

/// Measures each part in a fresh process, with the built-in vectors and by words alone in turns.
pub(crate) fn run(args: &[String]) {
    let messages = option(args, "--messages").unwrap_or("100000");
    let ways =
        ["words alone", "with vectors"].map(|way| (way, tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()));
    for role in ["add", "search", "forget"] {
        for (way, dir) in &ways {
            println!("\nspeed: {messages} messages, {way}");
            let mut child = Command::new(std::env::current_exe().unwrap());
            let child = child.env(ROLE, role).env(PLACE, dir.path()).env(MESSAGES, messages);
            let child = if *way == "words alone" { child.env_remove(VECTORS) } else { child.env(VECTORS, "1") };
            assert!(child.status().unwrap().success(), "{role} failed");
        }
    }
}

/// Performs one of the parts.
pub(crate) fn in_child(role: &str) {
    let place = PathBuf::from(std::env::var_os(PLACE).unwrap());
    let messages = std::env::var(MESSAGES).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    match role {
        "add" => runtime.block_on(add(&place, messages)),
        "search" => runtime.block_on(search(&place)),
        "forget" => runtime.block_on(forget(&place)),
        other => panic!("there is no role {other}"),
    }
}

async fn add(place: &Path, messages: usize) {
    let sessions = sessions(messages);
    let told: usize = sessions.iter().map(|session| session.passages.len()).sum();
    let bytes: usize = sessions.iter().flat_map(|session| &session.passages).map(|passage| passage.text.len()).sum();
    let before = resident_bytes();
    let memory = open(place);
    let (mut batch, mut size, mut times) = (Vec::new(), 0, Vec::new());
    for session in sessions {
        size += session.passages.len();
        batch.push(session);
        if size >= BATCH {
            let started = Instant::now();
            memory.add(std::mem::take(&mut batch)).await.unwrap();
            times.push(started.elapsed());
            size = 0;
        }
    }
    let started = Instant::now();
    memory.add(batch).await.unwrap();
    times.push(started.elapsed());
    let total: Duration = times.iter().sum();
    times.sort_unstable();
    println!(
        "  adding           {:.3} ms a message, amortised; batches of about {BATCH}: p50 {:.1?}, p95 {:.1?}, longest {:.1?}",
        total.as_secs_f64() * 1e3 / told as f64,
        at(&times, 50),
        at(&times, 95),
        times[times.len() - 1]
    );
    let started = Instant::now();
    memory.close().await;
    println!("  closing          {:.1?}", started.elapsed());
    println!("  memory           {} MiB more resident after {told} messages", mib(resident_bytes() - before));
    println!("  texts            {} MiB, {} bytes each", mib(bytes as u64), bytes / told);
    print_files(place, bytes);
}

/// Prints what the files take beside the texts.
fn print_files(place: &Path, texts: usize) {
    let all: u64 = files(place).iter().map(|(_, bytes)| bytes).sum();
    println!("  files            {} MiB, {:.2} x the texts", mib(all), all as f64 / texts as f64);
}

/// Forgets one message, and then a hundred at once, and waits each time until they are in no file.
async fn forget(place: &Path) {
    let memory = open(place);
    for limit in [1, 100] {
        let found = memory.search(request("report", limit)).await.unwrap().items;
        let requests = found.iter().map(|hit| ForgetMemory {
            session_id: Some(hit.session_id),
            from_seq: Some(hit.from_seq),
            to_seq: Some(hit.to_seq),
            ..ForgetMemory::default()
        });
        let started = Instant::now();
        let forgotten = memory.forget(requests.collect()).await.unwrap();
        let answered = started.elapsed();
        memory.erased().await.unwrap();
        let erased = started.elapsed();
        println!("  forgetting       {answered:.2?} for {forgotten} messages, {erased:.2?} until they are in no file");
    }
    memory.close().await;
}

/// Adds a filter to a request.
type Narrow = fn(SearchMemory) -> SearchMemory;

async fn search(place: &Path) {
    reload(place).await;
    let before = resident_bytes();
    let memory = open(place);
    memory.search(request("anything", 1)).await.unwrap();
    let queries = queries();
    let filters: [(&str, Narrow); 4] = [
        ("no filter", |request| request),
        ("a label", |request| SearchMemory { labels: BTreeMap::from([("team".into(), "3".into())]), ..request }),
        ("a role", |request| SearchMemory { role: Some("assistant".into()), ..request }),
        ("a month", |request| SearchMemory {
            since: Some(Timestamp::from_millis(1_720_000_000_000)),
            until: Some(Timestamp::from_millis(1_722_600_000_000)),
            ..request
        }),
    ];
    for (name, filter) in filters {
        let (mut times, mut hits) = (Vec::new(), 0);
        for query in &queries {
            let request = filter(request(query, 10));
            let started = Instant::now();
            hits += memory.search(request).await.unwrap().items.len();
            times.push(started.elapsed());
        }
        times.sort_unstable();
        println!(
            "  search, {name:<10} p50 {:.2?}, p95 {:.2?}, longest {:.2?}; {:.1} hits each",
            at(&times, 50),
            at(&times, 95),
            times[times.len() - 1],
            hits as f64 / queries.len() as f64
        );
    }
    println!("  memory           {} MiB more resident after a reload and the searches", mib(resident_bytes() - before));
    memory.close().await;
}

/// Measures opening until the first answer, against reading the same bytes, in turns.
async fn reload(place: &Path) {
    let (mut opened, mut read) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let started = Instant::now();
        let bytes: usize = files(place).iter().map(|(file, _)| fs::read(file).unwrap().len()).sum();
        let reading = started.elapsed();
        assert!(bytes > 0);
        let started = Instant::now();
        let memory = open(place);
        memory.search(request("anything", 1)).await.unwrap();
        let opening = started.elapsed();
        memory.close().await;
        // The first round fills the system's cache.
        if round > 0 {
            opened.push(opening);
            read.push(reading);
        }
    }
    opened.sort_unstable();
    read.sort_unstable();
    let (opened, read) = (at(&opened, 50), at(&read, 50));
    println!(
        "  reload           {opened:.1?} to the first answer, reading the files {read:.1?}: {:.2} x",
        opened.as_secs_f64() / read.as_secs_f64()
    );
}

fn open(place: &Path) -> SharedMemory {
    let embedder = std::env::var_os(VECTORS).and_then(|_| builtin_embedder());
    open_memory(Some(place), MemoryOptions { embedder, ..MemoryOptions::default() }).unwrap()
}

/// Makes sessions of the reporting book, with words of natural rarity added to each message.
fn sessions(messages: usize) -> Vec<Intake> {
    let book = Book::report();
    let size = Size { sessions: (messages / 60).max(60), messages: 36, people: 7 };
    let (mut sessions, _) = generate(&book, 7, size);
    let (mut random, mut told) = (Random::new(77), 0);
    sessions.retain(|session| {
        let is_wanted = told < messages;
        told += session.passages.len();
        is_wanted
    });
    for (nth, session) in sessions.iter_mut().enumerate() {
        session.labels.insert("team".to_owned(), (nth % 10).to_string());
        for passage in &mut session.passages {
            // A message has some 500 bytes.
            for _ in 0..30 + random.below(126) {
                passage.text.push(' ');
                passage.text.push_str(&word(&mut random));
            }
        }
    }
    assert!(told >= messages, "there are too few sessions");
    sessions
}

/// Makes up a word; the first thousand are half of all.
fn word(random: &mut Random) -> String {
    let bound = 1 << (4 + random.below(13));
    let mut number = random.below(VOCABULARY.min(bound));
    let mut word = String::new();
    loop {
        word.push(char::from(b"bdfgklmnprstvz"[number % 14]));
        word.push(char::from(b"aeiou"[number / 14 % 5]));
        number /= 70;
        if number == 0 {
            return word;
        }
    }
}

/// Makes queries: questions of the reporting book, and words.
fn queries() -> Vec<String> {
    let size = Size { sessions: 60, messages: 4, people: 7 };
    let asked = super::questions::report(size).questions;
    let mut random = Random::new(777);
    let text = |nth: usize| asked[nth % asked.len()].text.clone();
    (0..SEARCHES)
        .map(|nth| if nth % 3 == 0 { format!("{} {}", word(&mut random), word(&mut random)) } else { text(nth) })
        .collect()
}

fn at(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

fn files(place: &Path) -> Vec<(PathBuf, u64)> {
    let (mut found, mut folders) = (Vec::new(), vec![place.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = fs::metadata(&path).unwrap().len();
                found.push((path, bytes));
            }
        }
    }
    found
}

fn mib(bytes: u64) -> u64 {
    bytes / (1024 * 1024)
}

fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
