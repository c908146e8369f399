//! The scan, the graph, filters, and equal texts.

use super::*;

const DIMENSION: usize = 24;
const SUBJECTS: usize = 8;
const GRAPH_FROM: usize = 300;

/// Makes pseudo-random vectors.
fn vectors(count: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut state = seed;
    let mut component = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (f64::from((state >> 33) as u32) / f64::from(1_u32 << 31) - 0.5) as f32
    };
    (0..count).map(|_| (0..DIMENSION).map(|_| component()).collect()).collect()
}

/// Makes a lane whose n-th text has the n-th vector.
fn lane(vectors: &[Vec<f32>]) -> VectorLane {
    let mut lane = VectorLane::new(DIMENSION, GRAPH_FROM);
    for (doc, vector) in (0..).zip(vectors) {
        lane.insert(doc, u64::from(doc) + 1_000, vector).unwrap();
    }
    lane
}

/// Returns the texts that are found, best first.
fn found(lane: &VectorLane, query: &[f32], most: usize, passes: &dyn Fn(u32) -> bool) -> Vec<u32> {
    let cosines = lane.search(query, most, passes);
    let mut found: Vec<(u32, f32)> = (0..).zip(cosines).filter(|(_, cosine)| *cosine != 0.0).collect();
    found.sort_by(|one, other| other.1.total_cmp(&one.1));
    found.into_iter().map(|(doc, _)| doc).collect()
}

/// Returns the nearest texts by plain arithmetic.
fn nearest(all: &[Vec<f32>], query: &[f32], most: usize, passes: &dyn Fn(u32) -> bool) -> Vec<u32> {
    let dot =
        |one: &[f32], other: &[f32]| one.iter().zip(other).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let mut near: Vec<(f64, u32)> = (0..)
        .zip(all)
        .filter(|(doc, _)| passes(*doc))
        .map(|(doc, vector)| (dot(vector, query) / dot(vector, vector).sqrt(), doc))
        .collect();
    near.sort_by(|one, other| other.0.total_cmp(&one.0));
    near.into_iter().take(most).map(|(_, doc)| doc).collect()
}

/// Returns the share of the ten nearest that is found.
fn share(lane: &VectorLane, all: &[Vec<f32>], queries: &[Vec<f32>], passes: &dyn Fn(u32) -> bool) -> f64 {
    let hits = queries.iter().map(|query| {
        let expected = nearest(all, query, 10, passes);
        found(lane, query, 10, passes).iter().filter(|doc| expected.contains(doc)).count()
    });
    hits.sum::<usize>() as f64 / (10 * queries.len()) as f64
}

/// With all links to a vector's own subject, a search could not leave the subject at which it began: half was found.
#[test]
fn of_subjects_that_have_more_texts_than_a_search_looks_at_each_is_found() {
    let subjects = vectors(SUBJECTS, 7);
    let about = |count: usize, seed: u64| -> Vec<Vec<f32>> {
        let told = |(at, noise): (usize, Vec<f32>)| {
            subjects[at % SUBJECTS].iter().zip(noise).map(|(part, noise)| part + 0.3 * noise).collect()
        };
        vectors(count, seed).into_iter().enumerate().map(told).collect()
    };
    let (all, queries) = (about(SUBJECTS * 2 * WIDTH_MIN, 8), about(2 * SUBJECTS, 9));
    let mut lane = lane(&all);
    while lane.extend_graph() {}
    assert!(share(&lane, &all, &queries, &|_| true) > 0.99);
}

#[test]
fn few_vectors_are_compared_exactly() {
    let all = vectors(GRAPH_FROM - 1, 3);
    let mut lane = lane(&all);
    assert!(lane.is_graph_whole() && !lane.extend_graph());
    for query in vectors(20, 4) {
        for passes in [&(|_| true) as &dyn Fn(u32) -> bool, &|doc| doc % 7 == 0] {
            assert_eq!(found(&lane, &query, 10, passes), nearest(&all, &query, 10, passes));
        }
    }
}

/// While the graph grows, what it lacks is scanned.
#[test]
fn the_graph_of_many_vectors_finds_nearly_all_and_what_it_lacks_is_found_too() {
    let all = vectors(4 * GRAPH_FROM, 5);
    let mut lane = lane(&all);
    let queries = vectors(40, 6);
    let share = |lane: &VectorLane, passes: &dyn Fn(u32) -> bool| share(lane, &all, &queries, passes);
    let mut is_more = true;
    while is_more {
        is_more = lane.extend_graph();
        if lane.in_graph.is_multiple_of(200) {
            assert!(share(&lane, &|_| true) > 0.9, "{} are in the graph", lane.in_graph);
        }
    }
    assert!(lane.is_graph_whole() && lane.in_graph == all.len());
    assert!(share(&lane, &|_| true) > 0.9);
    assert!(share(&lane, &|doc| doc % 3 == 0) > 0.9, "a wide filter walks the graph");
    assert!((share(&lane, &|doc| doc % 50 == 0) - 1.0).abs() < 1e-9, "a narrow one is scanned");
    // The graph gives back what is new.
    lane.insert(5_000, 1, &queries[0]).unwrap();
    assert_eq!(found(&lane, &queries[0], 1, &|_| true), [5_000]);
    while lane.extend_graph() {}
    assert_eq!(found(&lane, &queries[0], 1, &|_| true), [5_000]);
}

#[test]
fn equal_texts_have_one_vector_until_the_last_is_removed() {
    let all = vectors(3, 7);
    let mut lane = lane(&all);
    assert!(lane.share(9, 1_001) && !lane.share(8, 77));
    lane.insert(9, 1_001, &all[0]).unwrap();
    assert_eq!(lane.len(), 3);
    assert_eq!(found(&lane, &all[1], 1, &|_| true), [1, 9]);
    lane.remove(1);
    lane.remove(1);
    assert_eq!((lane.len(), found(&lane, &all[1], 1, &|_| true)), (3, vec![9]));
    lane.remove(9);
    assert_eq!(lane.len(), 2);
    assert!(!found(&lane, &all[1], 3, &|_| true).contains(&9));
    assert!(!lane.share(4, 1_001), "it is removed");
}

/// Many equal vectors of different texts must not crowd the others out of the graph.
#[test]
fn different_texts_with_one_vector_share_it() {
    let all = vectors(2 * GRAPH_FROM, 9);
    let mut lane = lane(&all);
    for doc in 10_000..10_400 {
        lane.insert(doc, u64::from(doc), &all[0]).unwrap();
    }
    while lane.extend_graph() {}
    assert_eq!(lane.len(), all.len());
    assert_eq!(found(&lane, &all[0], 1, &|_| true).len(), 401);
    (10_000..10_400).for_each(|doc| lane.remove(doc));
    assert_eq!(found(&lane, &all[0], 1, &|_| true), [0]);
}

#[test]
fn a_vector_that_cannot_be_compared_is_refused() {
    let mut lane = VectorLane::new(DIMENSION, GRAPH_FROM);
    assert_eq!(lane.insert(0, 1, &[1.0]), Err(VectorError::Length { found: 1, expected: DIMENSION }));
    assert_eq!(lane.insert(0, 1, &[f32::NAN; DIMENSION]), Err(VectorError::NotFinite));
    lane.insert(0, 1, &[0.0; DIMENSION]).unwrap();
    assert!(lane.is_empty(), "it has no direction");
    assert!(lane.search(&[1.0], 3, &|_| true).is_empty());
}

#[test]
fn a_lane_with_many_removed_vectors_is_sparse() {
    let all = vectors(GRAPH_FROM, 8);
    let mut lane = lane(&all);
    assert!(!lane.is_sparse());
    (0..GRAPH_FROM as u32 / 2).for_each(|doc| lane.remove(doc));
    assert!(lane.is_sparse());
}
