//! What a person does with a session whose files are damaged: each command says so, the others' sessions are saved, and
//! a repair lets the session go on.

use std::{fs, path::PathBuf};

use meerkat_errors::ErrorCode;
use serde_json::Value;

use super::Stage;

const DAMAGED: u8 = 18;

impl Stage {
    fn segment(&self, id: &str) -> PathBuf {
        self.0.path().join("data/journal").join(&id[id.len() - 2..]).join(id).join("1.1.mlog")
    }

    fn session(&self, turns: usize) -> String {
        let id = self.json(&["run", "@say Text 0."])["session_id"].as_str().unwrap().to_owned();
        for turn in 1..turns {
            self.json(&["resume", &id, &format!("@say Text {turn}.")]);
        }
        id
    }
}

#[test]
fn a_damaged_session_is_named_by_each_command_left_out_of_a_backup_and_repaired() {
    assert_eq!(ErrorCode::SessionCorrupted.exit_code(), DAMAGED);
    let stage = Stage::new();
    let (good, bad) = (stage.session(2), stage.session(6));
    let whole = stage.json(&["sessions", "show", &bad])["last_seq"].as_u64().unwrap();
    let path = stage.segment(&bad);
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(7).position(|window| window == b"Text 3.").unwrap();
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();

    for args in [
        &["sessions", "history", &bad, "--all"][..],
        &["sessions", "export", &bad, "-o", "one.tar"],
        &["sessions", "export", "--all", "-o", "all.tar"],
        &["resume", &bad, "@say More."],
    ] {
        let ran = stage.run(args);
        assert_eq!(ran.code, DAMAGED, "{args:?}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains(&bad), "{args:?}: {}", ran.err);
    }
    assert!(!stage.0.path().join("one.tar").exists());
    // What can be saved is saved.
    let read = stage.json(&["sessions", "import", "all.tar", "--new-ids"]);
    assert_eq!(read["sessions"].as_array().unwrap().len(), 1, "{read}");
    assert_eq!(read["sessions"][0]["imported_from"], good);

    let repaired = stage.run(&["doctor", "--repair"]);
    assert!(repaired.out.contains("all other events are kept"), "{}{}", repaired.out, repaired.err);
    let turn = stage.json(&["resume", &bad, "@say More."]);
    assert_eq!(turn["text"], "More.", "{turn}");
    let events = stage.json(&["events", &bad, "--since", "0", "--limit", "1000"]);
    let items = events["items"].as_array().unwrap();
    let lost = items.iter().find(|item| item["type"] == "records_lost").unwrap();
    assert_eq!(lost["seq"], whole + 1, "no event is numbered again");
    let of_text = |text: &str| items.iter().any(|item: &Value| item.to_string().contains(text));
    assert!(of_text("Text 2.") && of_text("Text 5."), "{events}");
    stage.json(&["sessions", "export", "--all", "-o", "all.tar"]);
}
