//! What OpenAI's protocol adds to a turn: a response, and the same turn over REST in a new session, by turns against one
//! server. In memory, so that no disk is measured.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets an impossible value stops there")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(dead_code, reason = "the benchmarks share one module and need different parts of it")]

mod side_by_side;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use side_by_side::{Client, median, meerkat};

const PAIRS: usize = 300;
const WARM_UP: usize = 30;
const JSON: &str = "content-type: application/json\r\n";

fn over_rest(client: &mut Client, prompt: &str) {
    let made: Value = serde_json::from_slice(&client.ask_for("POST /v1/sessions", JSON, "{}").body).unwrap();
    let line = format!("POST /v1/sessions/{}/turns", made["session_id"].as_str().unwrap());
    let answer = client.ask_for(&line, JSON, &json!({ "prompt": prompt }).to_string());
    assert!(answer.head.starts_with("http/1.1 200"), "{}", answer.head);
}

fn over_openai(client: &mut Client, prompt: &str) {
    let answer =
        client.ask_for("POST /v1/responses", JSON, &json!({ "model": "scripted", "input": prompt }).to_string());
    assert!(answer.head.starts_with("http/1.1 200"), "{}", answer.head);
}

fn main() {
    let server = meerkat(&[]);
    let script = "@chunks 2048 @long 2048 @note ";
    let prompt = format!("{script}{}", "x".repeat(512 - script.len()));
    let mut client = Client::http(server.port, "GET /healthz", "", "");
    let mut sides: [Vec<Duration>; 2] = Default::default();
    for round in 0..WARM_UP + PAIRS {
        for (side, turn) in sides.iter_mut().zip([over_rest, over_openai]) {
            let began = Instant::now();
            turn(&mut client, &prompt);
            if round >= WARM_UP {
                side.push(began.elapsed());
            }
        }
    }
    let [(rest, rest_95), (openai, openai_95)] = sides.map(|mut times| {
        let middle = median(&mut times);
        (middle, times[times.len() * 95 / 100])
    });
    println!(
        "a turn as a response: {openai:.2?}, p95 {openai_95:.2?}; over REST in a new session: {rest:.2?}, p95 \
         {rest_95:.2?}; {:.2} x (goal 1.3)",
        openai.as_secs_f64() / rest.as_secs_f64()
    );
}
