//! The lane finds what comparing each vector finds, not what was removed, and rejects changed files.

use std::fs;

use proptest::prelude::*;

use super::{
    SCAN_MAX, Stamp, VectorError, VectorLane,
    codes::{cosine, dot, encode},
    graph::level_of,
};

const DIMENSION: usize = 24;
const STAMP: Stamp = Stamp { embedder: 7, count: 3, generation: 2 };

/// Makes clustered vectors from a seed.
fn vectors(count: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    let centres: Vec<Vec<f32>> = (0..20).map(|_| (0..DIMENSION).map(|_| next()).collect()).collect();
    (0..count).map(|n| centres[n % 20].iter().map(|at| at + 0.5 * next()).collect()).collect()
}

fn lane(vectors: &[Vec<f32>]) -> VectorLane {
    let mut lane = VectorLane::new(DIMENSION);
    for (id, vector) in (0..).zip(vectors) {
        lane.insert(id, vector).unwrap();
    }
    lane
}

fn exact_cosine(one: &[f32], other: &[f32]) -> f32 {
    let dot = |one: &[f32], other: &[f32]| one.iter().zip(other).map(|(one, other)| one * other).sum::<f32>();
    dot(one, other) / (dot(one, one) * dot(other, other)).sqrt()
}

/// Returns the share of the scan's hits that the walk finds too.
fn recall(lane: &VectorLane, queries: &[Vec<f32>], accept: &dyn Fn(u32) -> bool) -> f64 {
    let (mut found, mut wanted) = (0, 0);
    for query in queries {
        let code = encode(query, DIMENSION).unwrap().unwrap();
        let walked = lane.walk(&code, 10, accept);
        let scanned = lane.scan(&code, 10, accept);
        wanted += scanned.len();
        found += scanned.iter().filter(|hit| walked.contains(hit)).count();
    }
    found as f64 / wanted as f64
}

#[test]
fn a_cosine_is_that_of_the_floats() {
    let vectors = vectors(60, 1);
    let lane = lane(&vectors);
    for query in &vectors[40..] {
        let hits = lane.search(query, 60, &|_| true);
        assert_eq!(hits.len(), 60);
        assert!(hits.is_sorted_by(|one, other| one.1 >= other.1));
        for (id, cosine) in hits {
            let expected = exact_cosine(query, &vectors[id as usize]);
            assert!((cosine - expected).abs() < 0.0005, "{cosine} for {expected}");
        }
    }
}

#[test]
fn no_sum_of_a_dot_product_is_too_large() {
    for dimension in [1, 2, 31, 32, 33, 4096] {
        let code = encode(&vec![3.0e38; dimension], dimension).unwrap().unwrap();
        assert!((cosine(dot(&code, &code)) - 1.0).abs() < 0.02, "{dimension}");
        let other: Vec<i16> = code.iter().map(|component| -component).collect();
        assert!((cosine(dot(&code, &other)) + 1.0).abs() < 0.02, "{dimension}");
    }
}

#[test]
fn the_graph_finds_what_looking_at_each_finds_also_after_many_were_removed() {
    let mut all = vectors(1540, 2);
    let queries = all.split_off(1500);
    let mut lane = lane(&all);
    assert!(recall(&lane, &queries, &|_| true) >= 0.98);
    for id in (0..1500).filter(|id| id % 5 == 0) {
        assert!(lane.remove(id));
    }
    assert!((lane.share_removed() - 0.2).abs() < 1e-9);
    assert!(recall(&lane, &queries, &|_| true) >= 0.98);
    assert!(recall(&lane, &queries, &|id| id % 3 == 1) >= 0.98);
    for query in &queries {
        let found = lane.walk(&encode(query, DIMENSION).unwrap().unwrap(), 50, &|id| id % 3 == 1);
        assert_eq!(found.len(), 50);
        assert!(found.iter().all(|(id, _)| id % 5 != 0 && id % 3 == 1));
    }
}

#[test]
fn many_equal_vectors_are_no_island() {
    let mut all = vectors(640, 4);
    let queries = all.split_off(600);
    let same = all[0].clone();
    // In the middle, so that the others must be reached past them.
    all.splice(300..300, std::iter::repeat_n(same.clone(), 700));
    let mut lane = lane(&all);
    assert!(recall(&lane, &queries, &|_| true) >= 0.98);
    let code = encode(&same, DIMENSION).unwrap().unwrap();
    let equal = |lane: &VectorLane| lane.walk(&code, 500, &|_| true).iter().filter(|hit| hit.1 > 0.9999).count();
    assert_eq!(equal(&lane), 500);
    // The twins of a removed node are still found.
    lane.remove(0);
    assert_eq!(equal(&lane), 500);
    assert!(lane.walk(&code, 10, &|id| id == 999).iter().any(|hit| hit.0 == 999));
}

#[test]
fn what_is_no_vector_is_refused_and_changes_nothing() {
    let all = vectors(5, 7);
    let mut lane = lane(&all);
    assert_eq!(lane.insert(0, &all[0][1..]), Err(VectorError::Length { found: DIMENSION - 1, expected: DIMENSION }));
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut vector = all[0].clone();
        vector[3] = bad;
        assert_eq!(lane.insert(0, &vector), Err(VectorError::NotFinite));
        assert_eq!(lane.search(&vector, 3, &|_| true), []);
    }
    assert_eq!(lane, super::tests::lane(&all));
    assert_eq!(lane.search(&all[0][1..], 3, &|_| true), []);
    assert_eq!(lane.search(&all[0], 0, &|_| true), []);
    assert_eq!(lane.search(&all[0], usize::MAX, &|_| true).len(), 5);
    assert_eq!(VectorLane::new(DIMENSION).search(&all[0], 3, &|_| true), []);
}

#[test]
fn a_vector_of_zeros_is_never_found() {
    let all = vectors(5, 8);
    let mut lane = lane(&all);
    lane.insert(9, &[0.0; DIMENSION]).unwrap();
    assert!(!lane.contains(9));
    assert_eq!(lane.search(&[0.0; DIMENSION], 9, &|_| true), []);
    lane.insert(2, &[-0.0; DIMENSION]).unwrap();
    assert_eq!((lane.len(), lane.contains(2)), (4, false));
    assert!(!lane.search(&all[2], 9, &|_| true).iter().any(|hit| hit.0 == 2));
}

#[test]
fn a_vector_takes_the_place_of_the_one_before() {
    let all = vectors(30, 9);
    let mut lane = lane(&all);
    lane.insert(3, &all[20]).unwrap();
    assert_eq!(lane.len(), 30);
    let best: Vec<u32> = lane.search(&all[20], 2, &|_| true).iter().map(|hit| hit.0).collect();
    assert!(best.contains(&3) && best.contains(&20), "{best:?}");
    assert!(lane.remove(3) && !lane.remove(3));
    lane.insert(3, &all[3]).unwrap();
    assert_eq!(lane.search(&all[3], 1, &|_| true)[0].0, 3);
}

#[test]
fn levels_are_as_rare_as_they_should_be() {
    let count = |level: u32| (0..160_000).filter(|&node| level_of(node) >= level).count();
    assert!((9_000..11_000).contains(&count(1)) && (500..750).contains(&count(2)), "{} {}", count(1), count(2));
}

#[test]
fn a_narrow_filter_and_a_small_lane_are_looked_at_one_by_one() {
    let lane = lane(&vectors(10, 10));
    assert!(lane.is_scanned(3, &|_| true));
    // Without vectors: only their number matters here.
    let count = u32::try_from(SCAN_MAX * 3).unwrap();
    let large = VectorLane {
        ids: (0..count).collect(),
        nodes: (0..count).map(|id| (id, id)).collect(),
        is_removed: vec![false; count as usize],
        ..VectorLane::new(DIMENSION)
    };
    assert!(!large.is_scanned(10, &|_| true));
    assert!(!large.is_scanned(10, &|id| id % 5 != 0));
    assert!(large.is_scanned(10, &|id| id % 20 == 0));
    assert!(large.is_scanned(10, &|id| id < 300));
    assert!(large.is_scanned(5000, &|_| true));
}

fn saved(count: usize) -> (tempfile::TempDir, VectorLane) {
    let dir = tempfile::tempdir().unwrap();
    let mut lane = lane(&vectors(count, 11));
    lane.insert(1000, &vectors(count, 11)[0]).unwrap();
    lane.remove(1);
    lane.save(dir.path(), STAMP).unwrap();
    (dir, lane)
}

#[test]
fn what_was_saved_is_loaded_and_goes_on() {
    use std::os::unix::fs::PermissionsExt as _;
    let (dir, mut lane) = saved(300);
    assert_eq!(saved(300).1, lane, "the same vectors make the same graph");
    let mut loaded = VectorLane::load(dir.path(), STAMP).unwrap();
    assert_eq!(loaded, lane);
    for (id, vector) in (5000..).zip(vectors(50, 12)) {
        loaded.insert(id, &vector).unwrap();
        lane.insert(id, &vector).unwrap();
    }
    assert_eq!(loaded, lane);
    let file = dir.path().join("vectors.graph");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    // A crashed attempt is overwritten.
    fs::write(dir.path().join("vectors.graph.new"), "half").unwrap();
    lane.save(dir.path(), STAMP).unwrap();
    assert_eq!(VectorLane::load(dir.path(), STAMP).unwrap(), lane);
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["vectors.graph"]);
    let empty = VectorLane::new(DIMENSION);
    empty.save(dir.path(), STAMP).unwrap();
    assert_eq!(VectorLane::load(dir.path(), STAMP).unwrap(), empty);
}

#[test]
fn a_file_of_another_stamp_is_none() {
    let (dir, _) = saved(20);
    for other in [Stamp { embedder: 8, ..STAMP }, Stamp { count: 4, ..STAMP }, Stamp { generation: 3, ..STAMP }] {
        assert!(VectorLane::load(dir.path(), other).is_none());
    }
    assert!(VectorLane::load(&dir.path().join("nowhere"), STAMP).is_none());
}

#[test]
fn a_file_that_is_cut_anywhere_is_none() {
    let (dir, _) = saved(20);
    let path = dir.path().join("vectors.graph");
    let bytes = fs::read(&path).unwrap();
    for len in (0..bytes.len()).step_by(13) {
        fs::write(&path, &bytes[..len]).unwrap();
        assert!(VectorLane::load(dir.path(), STAMP).is_none(), "{len}");
    }
    fs::write(&path, [bytes.as_slice(), &[0]].concat()).unwrap();
    assert!(VectorLane::load(dir.path(), STAMP).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Changed bytes make no lane; with a matching checksum, no panic and no endless search.
    #[test]
    fn a_changed_file_is_none(changes in prop::collection::vec((any::<prop::sample::Index>(), 1..=255_u8), 1..6)) {
        let (dir, _) = saved(40);
        let path = dir.path().join("vectors.graph");
        let good = fs::read(&path).unwrap();
        let mut bytes = good.clone();
        for (at, change) in changes {
            let at = at.index(bytes.len());
            bytes[at] ^= change;
        }
        fs::write(&path, &bytes).unwrap();
        prop_assert!(bytes == good || VectorLane::load(dir.path(), STAMP).is_none());
        let end = bytes.len() - 4;
        let crc = crc32c::crc32c(&bytes[..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&crc);
        fs::write(&path, &bytes).unwrap();
        if let Some(mut lane) = VectorLane::load(dir.path(), STAMP) {
            for (id, vector) in (7000..).zip(vectors(20, 13)) {
                lane.search(&vector, 5, &|_| true);
                lane.walk(&encode(&vector, DIMENSION).unwrap().unwrap(), 5, &|_| false);
                lane.insert(id, &vector).unwrap();
            }
        }
    }
}
