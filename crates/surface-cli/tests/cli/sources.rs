//! Servers that need no configuration, and `models`: where models come from, which there are, and what they lack.

use std::{
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use meerkat_errors::ErrorCode;
use meerkat_testkit::refusing_address;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::drive::{fake, meerkat, ran, terminal::cli};

const ANSWER: &str = r#"data: {"id":"1","choices":[{"index":0,"delta":{"content":"Well."},"finish_reason":null}]}

data: {"id":"1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: [DONE]

"#;

/// Ollama's lists: a model as its own tools name it, with the window in force while it is loaded.
const OLLAMA_MODELS: &str = r#"{"object":"list","data":[{"id":"llama3.2:latest","object":"model"},{"id":"qwen3:8b"}]}"#;
const OLLAMA_LOADED: &str = r#"{"models":[{"name":"llama3.2:latest","context_length":8192}]}"#;

/// A server on loopback, and the first lines, keys and bodies of what it was asked.
pub(crate) struct Server {
    pub(crate) host: String,
    asked: Arc<Mutex<Vec<(String, String, Value)>>>,
}

impl Server {
    /// Starts one that answers with a status and a body, by the first line; `None` is silent.
    pub(crate) fn start(answer: impl Fn(&str) -> Option<(u16, String)> + Clone + Send + 'static) -> Self {
        let asked = Arc::<Mutex<Vec<_>>>::default();
        let seen = asked.clone();
        let port = fake::serve(move |request| {
            let body = serde_json::from_slice(&request.body).unwrap_or_default();
            let line = request.line.strip_suffix(" HTTP/1.1").unwrap().to_owned();
            let (status, text) = answer(&line)?;
            seen.lock().unwrap().push((line, request.key, body));
            let kind = if text.starts_with("data:") { "text/event-stream" } else { "application/json" };
            Some((status, kind, text))
        });
        Self { host: format!("127.0.0.1:{port}"), asked }
    }

    /// Starts one that speaks as Ollama does. The model is loaded by its first answer.
    pub(crate) fn ollama() -> Self {
        let is_loaded = Arc::<AtomicBool>::default();
        Self::start(move |line| {
            let body = match line {
                "GET /v1/models" => OLLAMA_MODELS,
                "GET /api/ps" if is_loaded.load(Ordering::SeqCst) => OLLAMA_LOADED,
                "GET /api/ps" => r#"{"models":[]}"#,
                "POST /v1/chat/completions" => {
                    is_loaded.store(true, Ordering::SeqCst);
                    ANSWER
                }
                _ => return Some((404, "{}".to_owned())),
            };
            Some((200, body.to_owned()))
        })
    }

    fn lines(&self) -> Vec<String> {
        self.asked.lock().unwrap().iter().map(|(line, ..)| line.clone()).collect()
    }
}

fn with_ollama(host: &str, args: &[&str]) -> (Command, TempDir) {
    let dir = meerkat_testkit::folder();
    let mut command = meerkat(&dir, args);
    command.env("OLLAMA_HOST", host);
    (command, dir)
}

#[test]
fn a_model_of_ollama_needs_no_file() {
    let server = Server::ollama();
    let (mut command, dir) = with_ollama(&server.host, &["run", "--model", "ollama/llama3.2", "hi"]);
    let ran = ran(&mut command);
    assert_eq!((ran.code, ran.out.as_str()), (0, "Well.\n"), "{}", ran.err);
    assert!(!dir.path().join(".config").exists(), "nothing is written");
    let asked = server.asked.lock().unwrap();
    let (line, key, body) = &asked[0];
    assert_eq!((line.as_str(), key.as_str(), &body["model"]), ("POST /v1/chat/completions", "", &json!("llama3.2")));
}

#[test]
fn the_window_is_the_one_that_the_server_tells() {
    let window = |server: &Server, turns: usize| {
        let chat = cli(&["chat", "--json", "--model", "ollama/llama3.2"]).env("OLLAMA_HOST", &server.host);
        let mut talk = chat.talk();
        talk.next();
        for _ in 0..turns {
            assert_eq!(talk.ask("hi")["answer"]["text"], "Well.");
        }
        talk.ask("/call session/read")["answer"]["context"]["window_tokens"].as_u64().unwrap()
    };
    let server = Server::ollama();
    assert_eq!(window(&server, 0), 32_768, "it is not asked before");
    assert_eq!(server.lines(), [""; 0]);
    assert_eq!(window(&server, 2), 8192);
    assert_eq!(server.lines().iter().filter(|line| *line == "GET /api/ps").count(), 1, "it is asked once");
    for told in [r#"{"models":[{"name":"llama3.2:latest","context_length":7}]}"#, "[", "{}"] {
        let hostile = Server::start(move |line| {
            Some((200, if line.starts_with("POST") { ANSWER.to_owned() } else { told.to_owned() }))
        });
        assert_eq!(window(&hostile, 1), 32_768, "{told}");
    }
}

#[test]
fn where_nothing_answers_the_address_and_the_remedy_are_named() {
    let host = refusing_address().to_string();
    let ran = ran(&mut with_ollama(&host, &["run", "--model", "ollama/llama3.2", "hi"]).0);
    ran.refused(ErrorCode::ModelTimeout, &format!("http://{host} "));
    assert!(ran.err.contains("Start it") && ran.err.contains("set model.compatible.ollama.base_url"), "{}", ran.err);
}

#[test]
fn a_server_of_another_machine_is_not_reached_in_plain_text() {
    let run = |args: &[&str]| ran(&mut with_ollama("192.168.1.20", args).0);
    run(&["run", "--model", "ollama/x", "hi"]).refused(ErrorCode::ModelNotConfigured, "insecure_http");
    assert_eq!(run(&["run", "hi"]).code, 0, "it disturbs nothing else");
    let listed = run(&["models", "--json"]).json();
    let source = listed["sources"].as_array().unwrap().iter().find(|it| it["source"] == "ollama").unwrap();
    assert!(source["usable"] == false && source["state"].as_str().unwrap().contains("insecure_http"), "{source}");
}

#[test]
fn a_row_of_ollama_does_not_make_its_variable_stop_every_command() {
    let dir = meerkat_testkit::folder();
    std::fs::write(dir.path().join("mine.toml"), "model.compatible.ollama.window_tokens = 8192\n").unwrap();
    let run = |model: &str| {
        let mut command = meerkat(&dir, &["--config", "mine.toml", "run", "--model", model, "hi"]);
        ran(command.env("OLLAMA_HOST", "192.168.1.20"))
    };
    let scripted = run("scripted");
    assert_eq!(scripted.code, 0, "{}", scripted.err);
    run("ollama/x").refused(ErrorCode::ModelNotConfigured, "OLLAMA_HOST");
    // An address in the file is refused at once, as before.
    let row = "model.compatible.ollama.base_url = \"http://192.168.1.20/v1\"\n";
    std::fs::write(dir.path().join("mine.toml"), row).unwrap();
    run("scripted").refused(ErrorCode::ConfigInvalid, "model.compatible.ollama.base_url");
}

#[test]
fn openrouter_needs_only_its_key() {
    let model = ["run", "--model", "openrouter/vendor/name", "hi"];
    let dir = meerkat_testkit::folder();
    ran(&mut meerkat(&dir, &model)).refused(ErrorCode::ModelNotConfigured, "OPENROUTER_API_KEY");
    // Nothing here reaches the network: the proxy sees where the request wants to go.
    let proxy = Server::start(|_| Some((502, "{}".to_owned())));
    let mut command = meerkat(&dir, &model);
    command.env("OPENROUTER_API_KEY", "or-key-0123456789abcdef").env("MEERKAT_TURN__MODEL_ATTEMPTS", "1");
    assert_ne!(ran(command.env("HTTPS_PROXY", format!("http://{}", proxy.host))).code, 0);
    assert_eq!(proxy.lines(), ["CONNECT openrouter.ai:443"]);
}

#[test]
fn nothing_is_asked_that_nobody_names() {
    let server = Server::ollama();
    let dir = meerkat_testkit::folder();
    std::fs::create_dir(dir.path().join(".git")).unwrap();
    std::fs::write(dir.path().join("meerkat.toml"), "model.name = \"ollama/llama3.2\"\n").unwrap();
    for args in [&["run", "hello"][..], &["config", "show"], &["doctor"], &["capabilities"]] {
        let ran = ran(meerkat(&dir, args).env("OLLAMA_HOST", &server.host));
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
        assert!(args[0] != "run" || (ran.out.contains("scripted") && ran.err.contains("not trusted")), "{}", ran.err);
    }
    assert_eq!(server.lines(), [""; 0], "a project chooses no model");
}

#[test]
fn models_lists_sources_models_and_the_next_command() {
    let server = Server::ollama();
    let dir = meerkat_testkit::folder();
    let models = |args: &[&str], env: &[(&str, &str)]| {
        let args = [&["models"], args].concat();
        let ran = ran(meerkat(&dir, &args).env("OLLAMA_HOST", &server.host).envs(env.iter().copied()));
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran
    };
    let listed = models(&["--json"], &[("OPENAI_API_KEY", "sk-0123456789")]).json();
    let state = |name: &str| {
        let sources = listed["sources"].as_array().unwrap();
        let source = sources.iter().find(|it| it["source"] == name).unwrap_or_else(|| panic!("{name}: {listed}"));
        (source["usable"].as_bool().unwrap(), source["state"].as_str().unwrap().to_owned())
    };
    assert_eq!(state("openai"), (true, "has its key, from OPENAI_API_KEY".to_owned()));
    assert_eq!(state("anthropic"), (false, "no key: set ANTHROPIC_API_KEY".to_owned()));
    assert_eq!(state("openrouter"), (false, "no key: set OPENROUTER_API_KEY".to_owned()));
    assert_eq!(state("ollama"), (true, format!("answers at http://{}/v1 with 2 models", server.host)));
    for name in ["lmstudio", "vllm", "llama.cpp"] {
        assert!(state(name).1.contains("http://localhost:"), "{:?}", state(name));
    }
    let item = |name: &str| {
        let items = listed["items"].as_array().unwrap();
        items.iter().find(|it| it["model"] == name).unwrap_or_else(|| panic!("{name}: {listed}")).clone()
    };
    let usable = |name: &str| item(name)["usable"] == true;
    assert!(usable("ollama/llama3.2:latest") && usable("ollama/qwen3:8b") && usable("gpt-5.6-terra"));
    assert!(!usable("claude-sonnet-5-5") && item("gpt-5.6-terra")["default"] == true);
    assert_eq!(listed["next"], "meerkat run 'hello'");

    let text = models(&[], &[("GOOGLE_API_KEY", "g-0123456789")]).out;
    assert!(text.contains("has its key, from GOOGLE_API_KEY"), "{text}");

    let text = models(&[], &[]).out;
    for line in ["anthropic", "no key: set ANTHROPIC_API_KEY", "ollama/qwen3:8b", "answers until you choose a model"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("claude-"), "what lacks its key is no model to use: {text}");
    let next = text.lines().last().unwrap();
    let typed =
        next.strip_prefix("Next: meerkat ").and_then(|next| next.split_once(" makes it the default")).unwrap().0;
    let set = ran(&mut meerkat(&dir, &typed.split(' ').collect::<Vec<_>>()));
    assert_eq!(set.code, 0, "{typed}: {}", set.err);
    let answered = ran(meerkat(&dir, &["run", "hello"]).env("OLLAMA_HOST", &server.host));
    assert_eq!((answered.code, answered.out.as_str()), (0, "Well.\n"), "{}", answered.err);
}

/// The answer of a server whose state is asked for, and what is said of it. Windows are those in force.
#[test]
fn each_server_tells_its_windows_in_its_own_way() {
    let list = |more: &str| format!(r#"{{"data":[{{"id":"m"{more}}}]}}"#);
    for (preset, path, state, window) in [
        ("ollama", "/api/ps", r#"{"models":[{"name":"m:latest","context_length":4096}]}"#, json!(4096)),
        ("ollama", "/api/ps", r#"{"models":[]}"#, Value::Null),
        ("lmstudio", "/api/v0/models", r#"{"data":[{"id":"m","max_context_length":9999}]}"#, Value::Null),
        ("lmstudio", "/api/v0/models", r#"{"data":[{"id":"m","loaded_context_length":5000}]}"#, json!(5000)),
        ("llama.cpp", "/props", r#"{"default_generation_settings":{"n_ctx":6144}}"#, json!(6144)),
        ("vllm", "/v1/models", r#"{"data":[{"id":"m","max_model_len":7000}]}"#, json!(7000)),
    ] {
        let models = if path == "/v1/models" { state.to_owned() } else { list("") };
        let server = Server::start(move |line| match line.strip_prefix("GET ") {
            Some("/v1/models") => Some((200, models.clone())),
            Some(asked) if asked == path => Some((200, state.to_owned())),
            _ => Some((404, "{}".to_owned())),
        });
        let user = format!("model.compatible.{preset:?}.base_url = \"http://{}/v1\"\n", server.host);
        let dir = meerkat_testkit::folder();
        std::fs::write(dir.path().join("mine.toml"), user).unwrap();
        let listed = ran(&mut meerkat(&dir, &["--config", "mine.toml", "models", "--json"])).json();
        let name = format!("{preset}/m");
        let item = listed["items"].as_array().unwrap().iter().find(|it| it["model"] == name.as_str()).cloned();
        assert_eq!(item.unwrap_or_else(|| panic!("{listed}"))["window_tokens"], window, "{state}");
    }
}

#[test]
fn a_hostile_server_is_bounded_and_prints_nothing_of_its_own() {
    let long = "x".repeat(300);
    let names =
        json!({ "data": [{ "id": "good" }, { "id": "\u{1b}[31mpurple" }, { "id": long }, { "id": 7 }, { "id": "" }] });
    let many: Vec<Value> = (0..150).map(|number| json!({ "id": format!("m{number}") })).collect();
    let many = json!({ "data": many }).to_string();
    let huge = json!({ "data": [{ "id": "x".repeat(2 * 1024 * 1024) }] }).to_string();
    let nested = "[".repeat(100_000);
    for (status, body, expected) in [
        (200, names.to_string(), "with 5 models"),
        (200, many, "with 150 models"),
        (200, huge, "more than a mebibyte"),
        (200, nested, "something else than JSON"),
        (200, "{}".to_owned(), "lists no models"),
        (401, "{}".to_owned(), "status 401"),
    ] {
        let server = Server::start(move |_| Some((status, body.clone())));
        let ran = ran(&mut with_ollama(&server.host, &["models"]).0);
        assert!(ran.code == 0 && ran.out.contains(expected), "{expected}: {}", ran.out);
        assert!(
            !ran.out.contains(['\u{1b}']) && !ran.out.contains("purple") && !ran.out.contains("xxxx"),
            "{}",
            ran.out
        );
        assert_eq!(ran.out.contains("ollama/good"), expected == "with 5 models");
        assert!(expected != "with 150 models" || ran.out.contains("50 more of ollama are not listed"), "{}", ran.out);
    }
    // It takes the connection and says nothing.
    let server = Server::start(|_| None);
    let ran = ran(&mut with_ollama(&server.host, &["models"]).0);
    assert!(ran.code == 0 && ran.out.contains(&format!("nothing answers at http://{}", server.host)), "{}", ran.out);
}

#[test]
fn a_key_goes_to_its_own_server_alone() {
    let server = Server::ollama();
    let dir = meerkat_testkit::folder();
    let user =
        format!("model.compatible.mine = {{ base_url = \"http://{}/v1\", key_variable = \"K\" }}\n", server.host);
    std::fs::write(dir.path().join("mine.toml"), user).unwrap();
    let mut command = meerkat(&dir, &["--config", "mine.toml", "models"]);
    let other = Server::ollama();
    let ran = ran(command.env("K", "secret-0123456789abcdef").env("OLLAMA_HOST", &other.host));
    assert!(ran.out.contains("mine/qwen3:8b") && !ran.out.contains("secret-"), "{}", ran.out);
    let keys = |server: &Server| -> Vec<String> {
        server.asked.lock().unwrap().iter().map(|(_, key, _)| key.clone()).collect()
    };
    assert!(!keys(&server).is_empty() && keys(&server).iter().all(|key| key == "secret-0123456789abcdef"));
    assert!(!keys(&other).is_empty() && keys(&other).iter().all(String::is_empty));
}
