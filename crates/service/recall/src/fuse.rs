//! Ranking: three lanes (words, runs of letters, vectors) give one score, and hits under a floor are not answered.
//!
//! Filters apply before ranking. Scores compare hits of one answer only.

use std::collections::{BTreeMap, HashMap};

use super::{
    columns::{Columns, Doc},
    core::Core,
    embed::HashedEmbedder,
    file::Trouble,
    lexical::{self, Scores, Window},
    opened::Opened,
    text::{self, Terms, head},
    tuning, when,
};
use meerkat_words::{
    answers::SearchHit,
    clock::Timestamp,
    memory::Embedder as _,
    requests::{SearchMemory, SearchScope},
};

/// Hits if the request sets no limit.
const HITS: usize = 10;
/// Most hits; the service may ask for more than it returns.
pub(super) const HITS_MAX: usize = 1_000;
/// Bytes of a query that count.
pub(super) const QUERY_BYTES_MAX: usize = 4 * 1024;
/// Vectors to find, at least and for each hit.
const VECTORS_MIN: usize = 50;
const VECTORS_PER_HIT: usize = 4;

pub(super) struct Filter {
    /// By ordinal; all sessions if `None`.
    sessions: Option<Vec<bool>>,
    role: Option<u16>,
    since_ms: i64,
    until_ms: i64,
}

impl Filter {
    /// Makes a request's filter; `None` if no text can pass.
    pub(super) fn of(columns: &Columns, request: &SearchMemory) -> Option<Self> {
        let role = match &request.role {
            None => None,
            Some(role) => Some((0..).zip(columns.names()).find(|(_, name)| *name == role)?.0),
        };
        let session = match request.scope {
            SearchScope::Session => Some(columns.ordinal(request.session_id?)?),
            SearchScope::Project => None,
        };
        let sessions = (session.is_some() || !request.labels.is_empty()).then(|| {
            let mut passing = vec![false; columns.next_ordinal() as usize];
            for (ordinal, it) in columns.sessions().filter(|(ordinal, _)| session.is_none_or(|only| only == *ordinal)) {
                passing[ordinal as usize] =
                    request.labels.iter().all(|(name, value)| it.row.labels.get(name) == Some(value));
            }
            passing
        });
        Some(Self {
            sessions,
            role,
            since_ms: request.since.map_or(i64::MIN, Timestamp::as_millis),
            until_ms: request.until.map_or(i64::MAX, Timestamp::as_millis),
        })
    }

    fn passes(&self, doc: &Doc) -> bool {
        let is_of_session = |sessions: &Vec<bool>| sessions.get(doc.session as usize) == Some(&true);
        self.sessions.as_ref().is_none_or(is_of_session)
            && self.role.is_none_or(|role| role == doc.role)
            && (self.since_ms..=self.until_ms).contains(&doc.time_ms)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Candidate {
    doc: u32,
    session: u32,
    time_ms: i64,
    words: f32,
    runs: f32,
    cosine: f32,
    score: f32,
}

impl Core {
    /// Analyses a request; also returns true if there are vectors to compare with, or `None` if nothing can be found.
    pub(super) fn asked(&self, request: &SearchMemory) -> Result<Option<(Terms, bool)>, Trouble> {
        let terms = text::analyse_query(head(&request.query, QUERY_BYTES_MAX));
        if terms.words.is_empty() && terms.runs.is_empty() || request.limit == Some(0) {
            return Ok(None);
        }
        Ok(Some((terms, self.has_vectors()?)))
    }

    /// Finds the best hits; also returns true if some texts lack vectors.
    pub(super) fn search(
        &self,
        request: &SearchMemory,
        terms: &Terms,
        vector: Option<&[f32]>,
    ) -> Result<(Vec<SearchHit>, bool), Trouble> {
        let is_behind = self.is_behind()?;
        Ok((self.read(|open| best(open, request, terms, vector))?, is_behind))
    }
}

fn best(
    open: &Opened,
    request: &SearchMemory,
    terms: &Terms,
    vector: Option<&[f32]>,
) -> Result<Vec<SearchHit>, Trouble> {
    let Some(filter) = Filter::of(&open.columns, request) else { return Ok(Vec::new()) };
    let limit = request.limit.unwrap_or(HITS).min(HITS_MAX);
    let words = lexical::score(open, &terms.words, 0, &tuning::WORDS)?;
    let runs = lexical::score(open, &terms.runs, 1, &tuning::RUNS)?;
    let cosines = vector.map_or_else(HashMap::new, |vector| nearest(open, vector, limit, &filter));
    let speakers = lexical::score(open, &terms.speakers, 0, &tuning::WORDS)?;
    let mut ranked = candidates(&open.columns, &filter, &words, &runs, &cosines);
    let is_builtin = open.embedder == HashedEmbedder.id();
    let vector_weight = if is_builtin { tuning::BUILTIN_WEIGHT } else { tuning::VECTOR_WEIGHT };
    fuse(&open.columns, &mut ranked, vector_weight);
    weigh(&open.columns, &mut ranked, terms, &speakers, &request.query, limit);
    keep_best(&open.columns, &mut ranked, limit);
    if !ranked.iter().take(limit).any(|it| is_answer(&open.columns, it, &words, &runs)) {
        return Ok(Vec::new());
    }
    let best = ranked.first().map_or(0.0, |best| best.score);
    ranked.retain(|it| it.score >= best * tuning::SHARE_OF_BEST_MIN);
    ranked.truncate(limit);
    ranked.iter().map(|candidate| hit(open, candidate)).collect()
}

fn nearest(open: &Opened, vector: &[f32], limit: usize, filter: &Filter) -> HashMap<u32, f32> {
    let passes = |doc: u32| open.columns.doc(doc).is_some_and(|doc| filter.passes(doc));
    let lane = open.lane.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    let wanted = VECTORS_MIN.max(limit * VECTORS_PER_HIT);
    lane.as_ref().map_or_else(HashMap::new, |lane| lane.search(vector, wanted, &passes).into_iter().collect())
}

/// Collects the texts that pass the filter and that some lane found.
fn candidates(
    columns: &Columns,
    filter: &Filter,
    words: &Scores,
    runs: &Scores,
    cosines: &HashMap<u32, f32>,
) -> Vec<Candidate> {
    let passing = columns.docs().filter(|(_, doc)| filter.passes(doc));
    let scored = passing.map(|(number, doc)| {
        let window = Window::of(columns, number);
        Candidate {
            doc: number,
            session: doc.session,
            time_ms: doc.time_ms,
            words: words.windowed(&window),
            runs: runs.windowed(&window),
            cosine: cosines.get(&number).copied().unwrap_or(0.0).max(0.0),
            score: 0.0,
        }
    });
    scored.filter(|it| it.words > 0.0 || it.runs > 0.0 || it.cosine > 0.0).collect()
}

/// Scores each candidate by its lanes and by the best of its session.
fn fuse(columns: &Columns, candidates: &mut [Candidate], vector_weight: f32) {
    let best = candidates.iter().fold(Candidate::default(), |best, it| Candidate {
        words: best.words.max(it.words),
        runs: best.runs.max(it.runs),
        cosine: best.cosine.max(it.cosine),
        ..best
    });
    let mut best_of_session = vec![0.0_f32; columns.next_ordinal() as usize];
    for it in candidates.iter_mut() {
        it.score = tuning::WORDS_WEIGHT * share(it.words, best.words)
            + tuning::RUNS_WEIGHT * share(it.runs, best.runs)
            + vector_weight * share(it.cosine, best.cosine);
        let session = best_of_session.get_mut(it.session as usize);
        session.into_iter().for_each(|best| *best = best.max(it.score));
    }
    for it in candidates {
        it.score += tuning::SESSION * best_of_session.get(it.session as usize).copied().unwrap_or(0.0);
    }
}

/// Applies bonuses and maluses, after dropping candidates that these cannot bring among the best.
fn weigh(
    columns: &Columns,
    candidates: &mut Vec<Candidate>,
    terms: &Terms,
    speakers: &Scores,
    query: &str,
    limit: usize,
) {
    let times = candidates.iter().map(|it| it.time_ms);
    let (oldest, newest) = times.fold((i64::MAX, i64::MIN), |(low, high), time| (low.min(time), high.max(time)));
    let months = when::months(head(query, QUERY_BYTES_MAX), oldest, newest);
    let tool_results = (0..).zip(columns.names()).find(|(_, name)| *name == "tool_results").map(|(number, _)| number);
    keep_possible(candidates, limit);
    for it in candidates {
        let Some(doc) = columns.doc(it.doc) else { continue };
        let more = |applies: bool, by: f32| if applies { 1.0 + by } else { 1.0 };
        let is_dated = months.iter().any(|(from, to)| (*from..*to).contains(&it.time_ms));
        it.score *= more(speakers.holds_any(it.doc), tuning::SPEAKER)
            * more(is_dated, tuning::DATED)
            * more(terms.asks_when && doc.names_time, tuning::NAMES_TIME)
            * more(doc.asks, -tuning::ASKS)
            * more(Some(doc.role) == tool_results, -tuning::TOOL_RESULTS)
            * (1.0 + tuning::NEWEST * recency(it.time_ms, oldest, newest));
    }
}

/// Largest and smallest factor that `weigh` applies.
const MOST: f32 = (1.0 + tuning::SPEAKER) * (1.0 + tuning::DATED) * (1.0 + tuning::NAMES_TIME) * (1.0 + tuning::NEWEST);
const LEAST: f32 = (1.0 - tuning::ASKS) * (1.0 - tuning::TOOL_RESULTS);

/// Drops candidates that no factor can bring among the best.
fn keep_possible(candidates: &mut Vec<Candidate>, limit: usize) {
    if limit == 0 || candidates.len() <= limit {
        return;
    }
    let mut scores: Vec<f32> = candidates.iter().map(|it| it.score).collect();
    let (_, last, _) = scores.select_nth_unstable_by(limit - 1, |a, b| b.total_cmp(a));
    // Rounding errors are smaller than this.
    let least = *last * (LEAST / MOST) * 0.999;
    candidates.retain(|it| it.score >= least);
}

/// Keeps the best `limit`, best first.
fn keep_best(columns: &Columns, candidates: &mut Vec<Candidate>, limit: usize) {
    // Ties do not depend on the texts' numbers: the newer text first, then by session and position.
    let tie = |it: &Candidate| {
        let doc = columns.doc(it.doc);
        let session = doc.and_then(|doc| columns.session_at(doc.session)).map(|session| session.row.id);
        (doc.map(|doc| -doc.time_ms), session, doc.map(Doc::place))
    };
    let order = |a: &Candidate, b: &Candidate| b.score.total_cmp(&a.score).then_with(|| tie(a).cmp(&tie(b)));
    if candidates.len() > limit {
        candidates.select_nth_unstable_by(limit, order);
        candidates.truncate(limit);
    }
    candidates.sort_unstable_by(order);
}

fn share(score: f32, best: f32) -> f32 {
    if best > 0.0 { score / best } else { 0.0 }
}

#[expect(clippy::cast_precision_loss, reason = "a share")]
fn recency(time_ms: i64, oldest: i64, newest: i64) -> f32 {
    if newest > oldest { (time_ms - oldest) as f32 / (newest - oldest) as f32 } else { 0.0 }
}

/// Returns true if a candidate is more than noise.
fn is_answer(columns: &Columns, candidate: &Candidate, words: &Scores, runs: &Scores) -> bool {
    words.covered(columns, candidate.doc) >= tuning::WORDS_COVERED_MIN
        || runs.covered(columns, candidate.doc) >= tuning::RUNS_COVERED_MIN
        || candidate.cosine >= tuning::COSINE_MIN
}

fn hit(open: &Opened, candidate: &Candidate) -> Result<SearchHit, Trouble> {
    let gone = || super::opened::damaged("a text has no row");
    let doc = open.columns.doc(candidate.doc).ok_or_else(gone)?;
    let session = open.columns.session_at(doc.session).ok_or_else(gone)?;
    let lanes = [("words", candidate.words), ("ngrams", candidate.runs), ("vector", candidate.cosine)];
    let lanes: BTreeMap<String, f64> = lanes
        .into_iter()
        .filter(|(_, score)| *score > 0.0)
        .map(|(lane, score)| (lane.to_owned(), f64::from(score)))
        .collect();
    Ok(SearchHit {
        session_id: session.row.id,
        from_seq: doc.seq,
        to_seq: doc.to_seq,
        role: open.columns.name(doc.role).to_owned(),
        time: Timestamp::from_millis(doc.time_ms),
        text: open.snapshot.text(candidate.doc)?,
        score: f64::from(candidate.score),
        lanes,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the factors, none of the best is dropped before.
        #[test]
        fn nothing_is_left_out_that_could_be_among_the_best(
            texts in prop::collection::vec((0.0_f32..2.0, LEAST..MOST), 1..60),
            limit in 0_usize..20,
        ) {
            let weighed = |it: &Candidate| it.score * texts[it.doc as usize].1;
            let best = |mut candidates: Vec<Candidate>| {
                candidates.sort_by(|a, b| weighed(b).total_cmp(&weighed(a)).then(a.doc.cmp(&b.doc)));
                candidates.iter().take(limit).map(|it| it.doc).collect::<Vec<_>>()
            };
            let all = (0..).zip(&texts).map(|(doc, (score, _))| Candidate { doc, score: *score, ..Candidate::default() });
            let all: Vec<Candidate> = all.collect();
            let mut possible = all.clone();
            keep_possible(&mut possible, limit);
            prop_assert_eq!(best(possible), best(all));
        }
    }
}
