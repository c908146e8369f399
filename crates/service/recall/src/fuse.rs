//! Ranking: words, words spelt alike and vectors give one score, a text's session adds to it, and hits under a floor are
//! not answered.
//!
//! Filters apply before ranking. Equal texts of one role come once. Scores compare hits of one answer only.

use std::collections::{BTreeMap, HashMap, hash_map::Entry};

use super::{
    columns::Columns,
    core::Core,
    file::Trouble,
    lexical::{self, Scores, Window},
    opened::Opened,
    tables::Doc,
    text::{self, Terms, head},
    tuning, when,
};
use meerkat_words::{
    answers::SearchHit,
    clock::Timestamp,
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
    /// True if all other sessions are another user's.
    parts_users: bool,
    role: Option<u32>,
    since_ms: i64,
    until_ms: i64,
}

impl Filter {
    /// Makes a request's filter; `None` if no text can pass.
    pub(super) fn of(columns: &Columns, request: &SearchMemory) -> Option<Self> {
        let role = match &request.role {
            None => None,
            Some(role) => Some(columns.number_of(role)?),
        };
        let session = match request.scope {
            SearchScope::Session => Some(columns.ordinal(request.session_id?)?),
            SearchScope::Project => None,
        };
        let is_some_left_out = session.is_some() || !request.labels.is_empty() || request.within.is_some();
        let sessions = is_some_left_out.then(|| {
            let mut passing = vec![false; columns.next_ordinal() as usize];
            for (ordinal, it) in columns.sessions().filter(|(ordinal, _)| session.is_none_or(|only| only == *ordinal)) {
                let labels = &it.row.labels;
                passing[ordinal as usize] = request.labels.iter().all(|(name, value)| labels.get(name) == Some(value))
                    && request.within.iter().all(|(name, value)| labels.get(name) == value.as_ref());
            }
            passing
        });
        Some(Self {
            sessions,
            parts_users: request.within.is_some(),
            role,
            since_ms: request.since.map_or(i64::MIN, Timestamp::as_millis),
            until_ms: request.until.map_or(i64::MAX, Timestamp::as_millis),
        })
    }

    /// Returns true if the words of a text count. Those of other users change no answer, not even its order.
    pub(super) fn counts(&self, doc: &Doc) -> bool {
        !self.parts_users || self.is_of_session(doc)
    }

    fn is_of_session(&self, doc: &Doc) -> bool {
        self.sessions.as_ref().is_none_or(|sessions| sessions.get(doc.session as usize) == Some(&true))
    }

    fn passes(&self, doc: &Doc) -> bool {
        self.is_of_session(doc)
            && self.role.is_none_or(|role| role == doc.role)
            && (self.since_ms..=self.until_ms).contains(&doc.time_ms)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Candidate {
    doc: u32,
    /// By the query's words.
    words: f32,
    /// By words that are spelt like one that no text holds.
    alike: f32,
    cosine: f32,
    score: f32,
}

/// What the best text of each lane is worth.
#[derive(Clone, Copy)]
struct Weights {
    words: f32,
    cosine: f32,
}

impl Core {
    /// Analyses a request; also returns what is to be embedded of it, or `None` if nothing can be found.
    pub(super) fn asked(&self, request: &SearchMemory) -> Result<Option<(Terms, Option<String>)>, Trouble> {
        let terms = text::analyse_query(head(&request.query, QUERY_BYTES_MAX));
        if terms.words.is_empty() || request.limit == Some(0) {
            return Ok(None);
        }
        Ok(Some((terms, self.question(&request.query)?)))
    }

    /// Finds the best hits; also returns true if some texts lack vectors.
    pub(super) fn search(
        &self,
        request: &SearchMemory,
        terms: &Terms,
        vector: Option<&[f32]>,
    ) -> Result<(Vec<SearchHit>, bool), Trouble> {
        let is_behind = self.is_behind()?;
        let is_table = self.embedder.as_ref().is_some_and(|embedder| embedder.is_table());
        Ok((self.read(|open| best(open, request, terms, vector, is_table))?, is_behind))
    }

    /// Returns the text before each hit in its session, else the one after it.
    pub(super) fn beside(&self, hits: &[SearchHit]) -> Result<Vec<Option<String>>, Trouble> {
        self.read(|open| {
            let columns = &open.columns;
            let near = |hit: &SearchHit| {
                let session = columns.session(hit.session_id)?;
                let own = |doc: &u32| columns.doc(*doc).is_some_and(|doc| doc.seq == hit.from_seq);
                let first = session.docs.iter().position(own)?;
                let last = session.docs.iter().rposition(own)?;
                first.checked_sub(1).or(Some(last + 1)).and_then(|at| session.docs.get(at)).copied()
            };
            hits.iter().map(|hit| near(hit).map(|doc| open.snapshot.text(doc)).transpose()).collect()
        })
    }
}

/// Finds the best hits. A server's vectors count beside the words; those of a table only where words find little.
fn best(
    open: &Opened,
    request: &SearchMemory,
    terms: &Terms,
    vector: Option<&[f32]>,
    is_table: bool,
) -> Result<Vec<SearchHit>, Trouble> {
    let columns = &open.columns;
    let Some(filter) = Filter::of(columns, request) else { return Ok(Vec::new()) };
    let limit = request.limit.unwrap_or(HITS).min(HITS_MAX);
    let scores = lexical::score(open, terms, |doc| filter.counts(doc))?;
    let rank = |vector: Option<&[f32]>, least: f32, weights: Weights| {
        let cosines = vector.map_or_else(Vec::new, |vector| nearest(open, vector, limit, &filter));
        let mut found = candidates(columns, &filter, &scores, &cosines);
        found.retain(|it| it.cosine >= least);
        fuse(&mut found, weights);
        add_sessions(columns, &mut found);
        weigh(columns, &mut found, &request.query);
        distinct(columns, found, limit)
    };
    let mut ranked = rank(vector.filter(|_| !is_table), 0.0, Weights { words: 1.0, cosine: tuning::VECTOR_WEIGHT });
    let is_answer =
        |it: &Candidate| scores.covered(columns, it.doc) >= tuning::COVERED_MIN || it.cosine >= tuning::COSINE_MIN;
    if !ranked.iter().any(is_answer) {
        let Some(vector) = vector.filter(|_| is_table) else { return Ok(Vec::new()) };
        ranked = rank(Some(vector), tuning::COSINE_MIN, Weights { words: 0.0, cosine: 1.0 });
    }
    let best = ranked.first().map_or(0.0, |best| best.score);
    ranked.retain(|it| it.score >= best * tuning::SHARE_OF_BEST_MIN);
    ranked.iter().map(|candidate| hit(open, candidate)).collect()
}

/// Returns the cosine of each text that is near, by its number.
fn nearest(open: &Opened, vector: &[f32], limit: usize, filter: &Filter) -> Vec<f32> {
    let passes = |doc: u32| open.columns.doc(doc).is_some_and(|doc| filter.passes(doc));
    let lane = open.vectors.searched.lane.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    lane.as_ref().map_or_else(Vec::new, |lane| lane.search(vector, VECTORS_MIN.max(limit * VECTORS_PER_HIT), &passes))
}

/// Collects the texts that pass the filter and that some lane found.
fn candidates(columns: &Columns, filter: &Filter, scores: &Scores, cosines: &[f32]) -> Vec<Candidate> {
    let passing = columns.docs().filter(|(_, doc)| filter.passes(doc));
    let scored = passing.map(|(doc, _)| {
        let [words, alike] = scores.windowed(&Window::of(columns, doc));
        let cosine = cosines.get(doc as usize).copied().unwrap_or(0.0).max(0.0);
        Candidate { doc, words, alike, cosine, score: 0.0 }
    });
    scored.filter(|it| it.words > 0.0 || it.alike > 0.0 || it.cosine > 0.0).collect()
}

/// Scores each candidate by the best of each lane.
fn fuse(candidates: &mut [Candidate], weights: Weights) {
    let most = |of: fn(&Candidate) -> f32| candidates.iter().map(of).fold(0.0, f32::max);
    let (words, cosine) = (most(|it| it.words + it.alike), most(|it| it.cosine));
    for it in candidates {
        it.score = weights.words * share(it.words + it.alike, words) + weights.cosine * share(it.cosine, cosine);
    }
}

/// Adds to each candidate a share of its session's best text, the less the further away that is: one text must not lift
/// all of a very long session.
fn add_sessions(columns: &Columns, candidates: &mut [Candidate]) {
    let place = |doc: u32| {
        let doc = columns.doc(doc)?;
        let session = columns.session_at(doc.session)?;
        let at = session.docs.binary_search_by_key(&doc.place(), |other| columns.place(*other));
        Some((doc.session, at.unwrap_or_else(|at| at)))
    };
    let mut places: Vec<(u32, usize, usize)> = Vec::with_capacity(candidates.len());
    for (nth, it) in candidates.iter().enumerate() {
        places.extend(place(it.doc).map(|(session, at)| (session, at, nth)));
    }
    places.sort_unstable();
    let mut lift = vec![0.0_f32; candidates.len()];
    let mut pass = |places: &mut dyn Iterator<Item = &(u32, usize, usize)>| {
        let mut last: Option<(u32, usize, f32)> = None;
        for (session, at, nth) in places {
            let decayed = last.filter(|(of, ..)| of == session).map_or(0.0, |(_, before, score)| {
                let away = i32::try_from(before.abs_diff(*at)).unwrap_or(i32::MAX);
                score * tuning::SESSION_DECAY.powi(away)
            });
            let score = decayed.max(candidates.get(*nth).map_or(0.0, |it| it.score));
            if let Some(lift) = lift.get_mut(*nth) {
                *lift = lift.max(score);
            }
            last = Some((*session, *at, score));
        }
    };
    pass(&mut places.iter());
    pass(&mut places.iter().rev());
    for (it, lift) in candidates.iter_mut().zip(lift) {
        it.score += tuning::SESSION * lift;
    }
}

/// Applies the month that the question names, and that a question seldom answers.
fn weigh(columns: &Columns, candidates: &mut [Candidate], query: &str) {
    let times = candidates.iter().filter_map(|it| columns.doc(it.doc)).map(|doc| doc.time_ms);
    let (oldest, newest) = times.fold((i64::MAX, i64::MIN), |(low, high), time| (low.min(time), high.max(time)));
    let months = when::months(head(query, QUERY_BYTES_MAX), oldest, newest);
    for it in candidates {
        let Some(doc) = columns.doc(it.doc) else { continue };
        let factor = |applies: bool, by: f32| if applies { by } else { 1.0 };
        let is_dated = months.iter().any(|(from, to)| (*from..*to).contains(&doc.time_ms));
        it.score *= factor(is_dated, tuning::DATED) * factor(doc.asks, tuning::ASKS);
    }
}

/// Keeps the best `limit` of different texts, best first. Of a message and its copy in a fork, the older session's is
/// kept.
fn distinct(columns: &Columns, mut candidates: Vec<Candidate>, limit: usize) -> Vec<Candidate> {
    // Ties do not depend on the texts' numbers: the newer text first, then by session and position.
    let session = |doc: &Doc| columns.session_at(doc.session).map(|session| session.row.id);
    let tie = |it: &Candidate| {
        let doc = columns.doc(it.doc);
        (doc.map(|doc| -doc.time_ms), doc.and_then(session), doc.map(Doc::place))
    };
    let order = |a: &Candidate, b: &Candidate| b.score.total_cmp(&a.score).then_with(|| tie(a).cmp(&tie(b)));
    let (mut kept, mut known) = (Vec::<Candidate>::new(), HashMap::new());
    let mut sorted = 0;
    for at in 0..candidates.len() {
        if at == sorted {
            if kept.len() >= limit {
                break;
            }
            // A part at a time: few are needed, unless many are copies.
            let part = (limit * 2).max(at).min(candidates.len() - at);
            if at + part < candidates.len() {
                candidates[at..].select_nth_unstable_by(part, order);
            }
            candidates[at..at + part].sort_unstable_by(order);
            sorted = at + part;
        }
        let it = candidates[at];
        let Some(doc) = columns.doc(it.doc) else { continue };
        match known.entry((doc.text, doc.role)) {
            Entry::Vacant(entry) => {
                entry.insert(kept.len());
                kept.push(it);
            }
            Entry::Occupied(entry) => {
                let Some(kept) = kept.get_mut(*entry.get()) else { continue };
                let is_copy = |kept: &Doc| (kept.seq, kept.time_ms) == (doc.seq, doc.time_ms);
                if columns.doc(kept.doc).is_some_and(|kept| is_copy(kept) && session(doc) < session(kept)) {
                    kept.doc = it.doc;
                }
            }
        }
    }
    kept.truncate(limit);
    kept
}

fn share(score: f32, best: f32) -> f32 {
    if best > 0.0 { score / best } else { 0.0 }
}

fn hit(open: &Opened, candidate: &Candidate) -> Result<SearchHit, Trouble> {
    let gone = || super::opened::damaged("a text has no row");
    let doc = open.columns.doc(candidate.doc).ok_or_else(gone)?;
    let session = open.columns.session_at(doc.session).ok_or_else(gone)?;
    let lanes = [("words", candidate.words), ("ngrams", candidate.alike), ("vector", candidate.cosine)];
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
