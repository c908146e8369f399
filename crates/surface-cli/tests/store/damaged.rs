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

    /// What a command that does what it is meant to says.
    #[track_caller]
    fn said(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.out, ran.err);
        ran.out
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
        &["events", &bad, "--follow"],
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

    // Who asks for it gets everything else, and reads what is missing.
    let read = stage.json(&["events", &bad, "--limit", "1000", "--skip-damage"]);
    let gap = read["items"].as_array().unwrap().iter().find(|item| item["type"] == "pruned").unwrap();
    assert_eq!((&gap["reason"], &gap["from"]), (&"damage".into(), &gap["to"]), "{gap}");
    let said = format!("events {0} to {0} are damaged", gap["from"]);
    let shown = stage.said(&["events", &bad, "--limit", "1000", "--skip-damage"]);
    assert!(shown.contains(&said) && shown.contains("Text 5."), "{shown}");
    let until = ["events", &bad, "--follow", "--skip-damage", "--until", "pruned"];
    assert!(stage.said(&until).lines().last().unwrap().contains(&said));
    let shown = stage.said(&["sessions", "history", &bad, "--all", "--skip-damage"]);
    assert!(shown.contains(&said.replace("events", "Events")) && shown.contains("Text 5."), "{shown}");
    for list in ["session/steps", "session/turns"] {
        let about = format!("session_id={bad}");
        assert_eq!(stage.run(&["call", list, &about, "limit=100", "skip_damage=true"]).code, 0);
    }
    let exported = stage.run(&["sessions", "export", "--all", "-o", "all.tar", "--skip-damage"]);
    assert_eq!(exported.code, 0, "{}{}", exported.out, exported.err);
    let names =
        |text: &str| text.contains(&format!("events {0} to {0} are damaged, and not in the bundle", gap["from"]));
    assert!(exported.err.contains(&bad) && names(&exported.err), "{}", exported.err);
    let other = Stage::new();
    let tar = stage.0.path().join("all.tar");
    let imported = other.run(&["sessions", "import", tar.to_str().unwrap()]);
    assert!(imported.code == 0 && names(&imported.err), "{}{}", imported.out, imported.err);
    assert_eq!(other.json(&["resume", &bad, "@say More."])["text"], "More.");

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
