//! The vector lane by itself: recall against exact search, speed and memory, for 100,000 clustered vectors of 384
//! components, a fifth of them removed. `--vectors N` takes another number. All times are the processor's, on the one
//! thread that works, so that other load on the machine matters less.

use std::{fs, time::Duration};

use meerkat_recall::{VectorLane, builtin_embedder};
use meerkat_words::memory::EmbedFor;

/// Components of a vector of all-MiniLM-L6-v2, and of a built-in one.
const DIMENSION: usize = 384;
const BUILTIN: usize = 96;
/// Least number of vectors that may have a graph.
const LEAST: usize = 100;
const QUERIES: usize = 300;
const HITS: usize = 10;

/// Runs it with the arguments of the benchmark.
pub(crate) fn run(args: &[String]) {
    let count = super::option(args, "--vectors").map_or(100_000, |count| count.parse().unwrap());
    let (vectors, queries) = Mixture::new(7, DIMENSION).split(count);
    println!("vectors: {count} x {DIMENSION}, {QUERIES} queries, {HITS} hits each, a fifth removed");
    let before = resident_bytes();
    let mut lane = VectorLane::new(DIMENSION, LEAST);
    for (id, vector) in (0..).zip(vectors.chunks(DIMENSION)) {
        lane.insert(id, u64::from(id), vector).unwrap();
    }
    println!("  vectors          {:.0} MiB more resident", (resident_bytes() - before) as f64 / 1048576.0);
    let all = |id: u32| !is_removed(id);
    let truth: Vec<Vec<u32>> = queries.chunks(DIMENSION).map(|query| exact(&vectors, query)).collect();
    answer("scan", &lane, &queries, &truth, &all);
    let ((), took) = timed(|| while lane.extend_graph() {});
    let each = took.as_secs_f64() * 1e6 / count as f64;
    println!("  building         {:.1} s, {each:.0} µs each", took.as_secs_f64());
    println!("  with the graph   {:.0} MiB more resident", (resident_bytes() - before) as f64 / 1048576.0);
    (0..u32::try_from(count).unwrap()).filter(|&id| is_removed(id)).for_each(|id| lane.remove(id));
    answer("graph", &lane, &queries, &truth, &all);
    for percent in [50, 20, 5] {
        let passes = move |id: u32| !is_removed(id) && mixed(u64::from(id) + 99) % 100 < percent;
        let truth: Vec<Vec<u32>> = queries.chunks(DIMENSION).map(|query| nearest(&vectors, query, &passes)).collect();
        answer(&format!("{percent} % pass"), &lane, &queries, &truth, &passes);
    }
}

/// Prints for growing numbers of vectors how fast the scan and the graph are, by turns: from where on the graph is worth its
/// memory and the time that it takes to build.
pub(crate) fn crossover(_: &[String]) {
    embedding();
    println!("crossover: queries of {HITS} hits, µs of the processor by the scan and by the graph");
    for dimension in [BUILTIN, DIMENSION] {
        for count in [100, 1_000, 3_000, 10_000, 30_000, 100_000] {
            let (vectors, queries) = Mixture::new(7, dimension).split(count);
            let lane = |graph_from| {
                let mut lane = VectorLane::new(dimension, graph_from);
                for (id, vector) in (0..).zip(vectors.chunks(dimension)) {
                    lane.insert(id, u64::from(id), vector).unwrap();
                }
                lane
            };
            let (scan, mut graph) = (lane(usize::MAX), lane(LEAST));
            let before = resident_bytes();
            let ((), built) = timed(|| while graph.extend_graph() {});
            let grown = (resident_bytes().saturating_sub(before)) as f64 / 1_048_576.0;
            let near = |lane: &VectorLane, query: &[f32]| -> Vec<u32> {
                let cosines = lane.search(query, HITS, &|_| true);
                (0..).zip(cosines).filter(|(_, cosine)| *cosine != 0.0).map(|(id, _)| id).collect()
            };
            let (mut times, mut found, mut wanted) = ([Duration::ZERO; 2], 0, 0);
            for query in queries.chunks(dimension) {
                let (truth, took) = timed(|| near(&scan, query));
                times[0] += took;
                let (hits, took) = timed(|| near(&graph, query));
                times[1] += took;
                found += hits.iter().filter(|id| truth.contains(id)).count();
                wanted += truth.len();
            }
            let [scan, graph] = times.map(|time| time.as_secs_f64() * 1e6 / QUERIES as f64);
            println!(
                "  {count:>7} x {dimension}: {scan:.0} and {graph:.0}, recall@{HITS} {:.4}; built in {:.2} s, {grown:.0} MiB",
                found as f64 / wanted as f64,
                built.as_secs_f64()
            );
        }
    }
}

/// Prints what the built-in table takes for a text of agents' sessions, and the first time.
fn embedding() {
    let sessions = super::agents::report(super::agents::FULL).sessions;
    let texts: Vec<String> = sessions.iter().flat_map(|session| &session.passages).map(|it| it.text.clone()).collect();
    let bytes: usize = texts.iter().map(String::len).sum();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let embedder = builtin_embedder().unwrap();
    let embed = |texts: &[String]| timed(|| runtime.block_on(embedder.embed(texts, EmbedFor::Passage)).unwrap()).1;
    let before = resident_bytes();
    let first = embed(&texts[..1]);
    let grown = (resident_bytes().saturating_sub(before)) as f64 / 1_048_576.0;
    let each = embed(&texts).as_secs_f64() * 1e6 / texts.len() as f64;
    println!(
        "the built-in table: the first text {:.1} ms and {grown:.1} MiB; {} texts of {} bytes {each:.1} µs each",
        first.as_secs_f64() * 1e3,
        texts.len(),
        bytes / texts.len()
    );
}

/// Prints queries a second, and the share of the truth that was found.
fn answer(title: &str, lane: &VectorLane, queries: &[f32], truth: &[Vec<u32>], passes: &dyn Fn(u32) -> bool) {
    let found = |query: &[f32]| -> Vec<u32> {
        let cosines = lane.search(query, HITS, passes);
        (0..).zip(cosines).filter(|(_, cosine)| *cosine != 0.0).map(|(id, _)| id).collect()
    };
    let (found, took) = timed(|| queries.chunks(DIMENSION).map(found).collect::<Vec<_>>());
    let hits: usize =
        found.iter().zip(truth).map(|(found, truth)| found.iter().filter(|id| truth.contains(id)).count()).sum();
    let wanted: usize = truth.iter().map(Vec::len).sum();
    let speed = found.len() as f64 / took.as_secs_f64();
    println!("  {title:<17}{speed:.0} queries/s, recall@{HITS} {:.4}", hits as f64 / wanted as f64);
}

fn exact(vectors: &[f32], query: &[f32]) -> Vec<u32> {
    nearest(vectors, query, &|id| !is_removed(id))
}

/// Finds the nearest by comparing every float.
fn nearest(vectors: &[f32], query: &[f32], passes: &dyn Fn(u32) -> bool) -> Vec<u32> {
    let dot = |vector: &[f32]| {
        let mut sums = [0.0_f32; 16];
        for (ones, others) in vector.as_chunks::<16>().0.iter().zip(query.as_chunks::<16>().0) {
            for (sum, (one, other)) in sums.iter_mut().zip(ones.iter().zip(others)) {
                *sum += one * other;
            }
        }
        sums.iter().sum::<f32>()
    };
    let all = (0..).zip(vectors.chunks(DIMENSION)).filter(|(id, _)| passes(*id));
    let mut all: Vec<(f32, u32)> = all.map(|(id, vector)| (dot(vector), id)).collect();
    all.select_nth_unstable_by(HITS, |one, other| other.0.total_cmp(&one.0));
    all[..HITS].iter().map(|(_, id)| *id).collect()
}

fn is_removed(id: u32) -> bool {
    mixed(u64::from(id)).is_multiple_of(5)
}

const fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Vectors that lie as those of texts do: in clusters, along far fewer directions than they have components, with noise.
struct Mixture {
    state: u64,
    dimension: usize,
}

/// Directions along which they lie.
const LATENT: usize = 48;
const CLUSTERS: usize = 500;

impl Mixture {
    const fn new(state: u64, dimension: usize) -> Self {
        Self { state, dimension }
    }

    /// A number about 0, by the sum of twelve.
    fn normal(&mut self) -> f32 {
        let mut sum = 0.0;
        for _ in 0..12 {
            self.state += 1;
            sum += (mixed(self.state) >> 40) as f32 / (1 << 24) as f32;
        }
        sum - 6.0
    }

    fn normals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal()).collect()
    }

    /// Vectors to be found, and queries from the same mixture.
    fn split(mut self, count: usize) -> (Vec<f32>, Vec<f32>) {
        let directions = self.normals(LATENT * self.dimension);
        let centres = self.normals(CLUSTERS * LATENT);
        let mut all = Vec::with_capacity((count + QUERIES) * self.dimension);
        for _ in 0..count + QUERIES {
            self.state += 1;
            let centre = &centres[(mixed(self.state) % CLUSTERS as u64) as usize * LATENT..][..LATENT];
            let latent: Vec<f32> = centre.iter().map(|at| at + 0.7 * self.normal()).collect();
            let mut vector = vec![0.0; self.dimension];
            for (share, direction) in latent.iter().zip(directions.chunks(self.dimension)) {
                vector.iter_mut().zip(direction).for_each(|(sum, one)| *sum += share * one);
            }
            vector.iter_mut().for_each(|component| *component += 0.5 * self.normal());
            let norm = vector.iter().map(|component| component * component).sum::<f32>().sqrt();
            all.extend(vector.iter().map(|component| component / norm));
        }
        let queries = all.split_off(count * self.dimension);
        (all, queries)
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begun = worked();
    let done = work();
    (done, worked() - begun)
}

/// How long this thread has worked.
fn worked() -> Duration {
    let told = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(told.split(' ').next().unwrap().parse().unwrap())
}

fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
}
