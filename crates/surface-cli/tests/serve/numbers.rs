//! A float that is written to a session comes back bit for bit, whichever way it is read.

use std::{collections::BTreeMap, path::Path};

use serde_json::{Value, json};

use crate::drive::{meerkat, ran, server::Server};

/// Floats whose last digit a careless reader changes, and the ends of their range.
const FLOATS: [f64; 8] = [
    1.800_000_071_525_573_7,
    0.1,
    -0.0,
    5e-324,
    2.225_073_858_507_201e-308,
    f64::MAX,
    0.100_000_001_490_116_12,
    1.335_899_999_999_999_9,
];

/// Reads all files below a folder.
fn texts(dir: &Path) -> String {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(|path| {
            if path.is_dir() {
                texts(&path)
            } else {
                String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()
            }
        })
        .collect()
}

#[test]
fn a_float_comes_back_bit_for_bit() {
    let dir = meerkat_testkit::folder();
    let [data, files, bundle] = ["data", "files", "bundle"].map(|name| dir.path().join(name).display().to_string());
    let env = [
        ("MEERKAT_DATA_DIR", data.as_str()),
        ("MEERKAT_PROJECTION__DIR", files.as_str()),
        ("MEERKAT_LIMITS__WAIT_MS", "60000"),
    ];
    let server = Server::start(&env);
    let session = server.session();
    let wanted = format!("\"n\":{}", serde_json::to_string(&FLOATS).unwrap());
    let prompt = format!("@call test_echo {{\"text\":\"\",{wanted}}} @step @say Done.");
    let turn = server.send_with_token(
        "POST",
        &format!("/v1/sessions/{session}/turns"),
        &[],
        &json!({ "prompt": prompt }).to_string(),
    );
    let seq = turn.json()["seq"].as_u64().unwrap();

    let cli = |args: &[&str]| {
        let ran = ran(meerkat(&dir, args).envs(env));
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.out
    };
    let read = |server: &Server, session: &str| {
        let get = |path: &str| server.send_with_token("GET", &format!("/v1/sessions/{session}/{path}"), &[], "").body;
        let named = json!({ "session_id": session });
        let page = |tool: &str| server.mcp(tool, &named)["structuredContent"].to_string();
        BTreeMap::from([
            ("events over REST", get("events")),
            ("history over REST", get("messages")),
            ("events over RPC", server.rpc("session/events", &named).to_string()),
            ("history over RPC", server.rpc("session/history", &named).to_string()),
            ("events over MCP", page("session_events")),
            ("history over MCP", page("session_history")),
            ("history of the command line", cli(&["--json", "sessions", "history", session])),
        ])
    };
    let has_all = |read: BTreeMap<&str, String>| {
        for (place, text) in read {
            // The prompt, in which every quote is escaped, says them as well.
            assert!(text.replace("\\\"", "").contains(&wanted), "{place}: {text}");
        }
    };
    has_all(read(&server, &session));
    let projected = format!("/v1/readers/projection/sessions/{session}?seq={seq}&wait_ms=60000");
    assert_eq!(server.send_with_token("GET", &projected, &[], "").status, 200);
    assert!(texts(Path::new(&files)).replace("\\\"", "").contains(&wanted));
    cli(&["sessions", "export", &session, "--output", &bundle]);
    drop(server);

    let server = Server::start(&env);
    has_all(read(&server, &session));
    let imported: Value = serde_json::from_str(&cli(&["--json", "sessions", "import", &bundle, "--new-ids"])).unwrap();
    let copy = imported.to_string();
    let copy = copy.split('"').find(|text| text.len() == 36 && *text != session).unwrap();
    has_all(read(&server, copy));
}
