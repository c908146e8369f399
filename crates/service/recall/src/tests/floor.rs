//! The floor: a query about something never said finds nothing, however much was said.

use super::*;

/// Words about software, houses, food and travel, the commonest first.
const WORDS: &str = "the to and a of in it is that for we on with this have be not are you as but from at can will if \
    was so they or all do what when there which out more up has about then into some one no time just our after also \
    should new other how work only two first because next over could still like need before them day where here make \
    test file code server build table list line change error user name number data run check step order price room \
    paper street garden kitchen window winter summer morning evening train station ticket flight hotel mountain river \
    bridge market bread coffee sugar pepper onion tomato potato chicken butter recipe oven pan plate glass bottle \
    doctor nurse patient medicine hospital insurance invoice payment account customer contract deadline meeting agenda \
    minutes manager colleague office printer keyboard monitor battery cable screen phone camera picture painting music \
    guitar concert theatre actor movie novel author chapter library teacher student lesson exam grade mathematics \
    physics history language grammar sentence dictionary translation compiler database index query transaction commit \
    branch merge release version package dependency library function parameter return value string integer boolean \
    pointer thread process memory cache latency throughput network socket packet router firewall certificate password \
    encryption signature token session cookie browser request response header timeout retry backup restore snapshot \
    container cluster deployment rollback monitoring alert dashboard metric logging trace incident review approval \
    feature ticket roadmap milestone estimate budget proposal research experiment hypothesis measurement temperature \
    pressure voltage current resistor engine wheel brake bicycle motorcycle driver passenger luggage border customs \
    embassy visa passport island beach harbour sailor captain anchor weather forecast thunder lightning rain snow wind \
    cloud sunshine umbrella jacket sweater trousers shoes leather cotton fabric needle thread button carpet curtain \
    furniture cupboard mattress pillow blanket neighbour landlord tenant plumber electrician carpenter hammer screw \
    ladder bucket paint brush ceiling basement chimney fireplace candle lantern shadow silence whisper laughter";

/// Other words, not spelt much alike; each line is a query, and each word.
const UNSAID: [&str; 12] = [
    "zebra xylophone quarantine",
    "elephant saxophone helicopter",
    "astronaut volcano eruption",
    "penguin colony antarctica",
    "medieval cathedral gargoyle",
    "chromosome mutation platypus",
    "violin trumpet shipwreck",
    "origami swan kangaroo",
    "archaeologist pyramid dinosaur",
    "vaccination schedule crocodile",
    "falcon badminton chessboard",
    "tax refund bishop parliament",
];

/// Returns a pseudo-random number below `of`.
fn draw(state: &mut u64, of: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*state >> 33) % of as u64) as usize
}

/// Makes sessions with texts of 1 to 40 words, half of them short, common words more often.
fn corpus(sessions: u64, messages: u64) -> Vec<Intake> {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut state = 7;
    let mut text = || {
        let most = [4, 40][draw(&mut state, 2)];
        let count = 1 + draw(&mut state, most);
        let word = |_| {
            let most = 1 + draw(&mut state, words.len());
            words[draw(&mut state, most)]
        };
        (0..count).map(word).collect::<Vec<_>>().join(" ")
    };
    (1..=sessions)
        .map(|n| {
            let role = |seq: u64| if seq % 2 == 1 { "user" } else { "assistant" };
            intake(n, (1..=messages).map(|seq| said(seq, role(seq), &text())).collect())
        })
        .collect()
}

#[tokio::test]
async fn what_nobody_said_is_not_found_among_thousands() {
    let store = open(None, false);
    store.add(corpus(100, 20)).await.unwrap();
    let mut asked: Vec<String> = UNSAID.iter().flat_map(|line| line.split(' ')).map(str::to_owned).collect();
    for line in UNSAID {
        asked.extend([line.to_owned(), format!("What did we say about the {line}?")]);
    }
    let mut found = Vec::new();
    for unsaid in &asked {
        let hits = find(&store, unsaid).await;
        if let Some(first) = hits.first() {
            found.push((unsaid, hits.len(), first.text.clone(), first.lanes.clone()));
        }
    }
    assert!(found.is_empty(), "{} of {}: {found:#?}", found.len(), asked.len());
    // Misspelt words are found.
    for said in ["thunder lightning", "electricain", "pasport embassy", "hypotesis", "gramar", "moniter"] {
        assert!(!find(&store, said).await.is_empty(), "{said}");
    }
}
