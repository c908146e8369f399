//! Bundles that no export made: each is refused as a whole, and leaves no file behind.

use meerkat_service::{
    ErrorCode,
    options::Unattended,
    service::{CreateSession, PinFact, ReadHistory, StartTurn},
    wire,
};
use meerkat_testkit::in_time;
use serde_json::{Value, json};

use super::{
    archive::{Entry, FOLDER, KIND, LINK, MODE, NAME, OWNER, SIZE, describe, pack, seal, unpack},
    place, sample, stored,
};
use crate::stored::{Place, number};

type Change<T> = (&'static str, fn(&mut Vec<T>));

fn blob(files: &mut [Entry]) -> &mut Entry {
    files.iter_mut().find(|file| file.is_in("blobs/")).unwrap()
}

fn manifest(files: &mut [Entry]) -> &mut Entry {
    files.last_mut().unwrap()
}

fn put_into(files: &mut [Entry], folder: &str) {
    files.iter_mut().for_each(|file| file.set(FOLDER, folder));
}

/// Something is wrong with the archive.
const ARCHIVES: &[Change<Entry>] = &[
    ("a symlink", |files| {
        files[0].set(KIND, "2");
        files[0].set(LINK, "/etc/passwd");
    }),
    ("a hard link", |files| {
        files[0].set(KIND, "1");
        files[0].set(LINK, "manifest.json");
    }),
    ("a folder", |files| {
        let mut folder = files[0].but(|file| file.fill(""));
        folder.set(KIND, "5");
        folder.set(NAME, "events/");
        files.insert(0, folder);
    }),
    ("an extended header", |files| files.insert(0, files[0].but(|file| file.set(KIND, "x")))),
    ("a long name", |files| files.insert(0, files[0].but(|file| file.set(KIND, "L")))),
    ("an absolute name", |files| {
        files[0].set(FOLDER, "");
        files[0].set(NAME, "/etc/passwd");
    }),
    ("an absolute folder", |files| {
        let folder = format!("/{}", files[0].text(FOLDER));
        files[0].set(FOLDER, &folder);
    }),
    ("a name that leads out", |files| files[0].set(NAME, "../../manifest.json")),
    ("a blob that leads out", |files| files[0].set(NAME, "blobs/../../../evil")),
    ("a folder that leads out", |files| files[0].set(FOLDER, "..")),
    ("a folder in capitals", |files| {
        let folder = files[0].text(FOLDER).to_uppercase();
        put_into(files, &folder);
    }),
    ("another file", |files| {
        let mut other = files[0].but(|file| file.fill("#!/bin/sh\n"));
        other.set(NAME, "run.sh");
        files.insert(1, other);
    }),
    ("a name in another spelling", |files| {
        let name = files[0].text(NAME).replace("1-", "01-");
        files[0].set(NAME, &name);
    }),
    ("an owner", |files| files[0].set(OWNER, "root")),
    ("a mode", |files| files[0].set(MODE, "0004755")),
    ("a checksum that is wrong", |files| files[0].header[148] ^= 1),
    ("a negative size", |files| files[0].set(SIZE, "-0000000001")),
    ("a size in another form", |files| files[0].header[124] = 0x80),
    ("a huge size", |files| files[0].set(SIZE, "77777777777")),
    ("a huge blob", |files| blob(files).set(SIZE, "77777777777")),
    ("a huge manifest", |files| manifest(files).set(SIZE, "00400000000")),
    ("a file twice", |files| files.insert(1, files[1].clone())),
    ("a session twice", |files| files.extend(files.clone())),
    ("a session within another", |files| {
        let other = files[0].but(|file| file.set(FOLDER, "01900000-0000-7000-8000-000000000001"));
        files.insert(1, other);
    }),
    ("no manifest", |files| drop(files.pop())),
    ("nothing but a manifest", |files| drop(files.drain(..files.len() - 1))),
    ("a missing blob", |files| files.retain(|file| !file.is_in("blobs/"))),
    ("missing events", |files| drop(files.remove(0))),
    ("a blob of another name", |files| {
        blob(files).set(NAME, &format!("blobs/{}", "0".repeat(64)));
        seal(files);
    }),
    ("a blob twice", |files| {
        let twice = blob(files).clone();
        files.insert(1, twice);
        seal(files);
    }),
    ("another's manifest", |files| {
        put_into(files, "01900000-0000-7000-8000-000000000001");
        seal(files);
    }),
    ("a manifest that is none", |files| manifest(files).fill("{}")),
    ("a manifest of another format", |files| {
        let text = String::from_utf8(manifest(files).body.clone()).unwrap();
        manifest(files).fill(text.replace("meerkat bundle 1", "meerkat bundle 2"));
    }),
    ("events that are none", |files| {
        files[0].fill("");
        seal(files);
    }),
    ("a last line without its end", |files| {
        let body = files[0].body[..files[0].body.len() - 1].to_vec();
        files[0].fill(body);
        seal(files);
    }),
];

/// Something is wrong with the lines, and the hashes are right.
const LINES: &[Change<String>] = &[
    ("a line that is no JSON", |lines| lines[1] = "{".to_owned()),
    ("a line that is no event", |lines| lines[1] = "{}".to_owned()),
    ("an empty line", |lines| lines.insert(1, String::new())),
    ("a line twice", |lines| lines.insert(1, lines[1].clone())),
    ("lines in another order", |lines| lines.swap(1, 2)),
    // Lines may be missing, as journal compaction leaves them, but not so that the rest makes no sense.
    ("turns without their starts", |lines| lines.retain(|line| !line.contains(r#""type":"turn_started""#))),
    ("no beginning", |lines| drop(lines.remove(0))),
    ("no end", |lines| drop(lines.pop())),
    ("another session's line", |lines| {
        lines[1] = lines[1].replace(r#""session_id":"0"#, r#""session_id":"f"#);
    }),
    ("a turn that cannot be there", |lines| {
        lines.iter_mut().for_each(|line| *line = line.replace(r#""turn":0"#, r#""turn":4294967295"#));
    }),
    ("a turn that ends without a beginning", |lines| {
        lines[1] = lines[1].replace("turn_started", "some_other_kind");
    }),
    ("a carriage return", |lines| lines[1].insert(1, '\r')),
    ("deep nesting", |lines| {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        lines[1] = lines[1].replacen('{', &format!(r#"{{"deep":{deep},"#), 1);
    }),
];

fn with_lines(files: &mut [Entry], change: impl FnOnce(&mut Vec<String>)) {
    let text = String::from_utf8(files[0].body.clone()).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    change(&mut lines);
    files[0].fill(lines.join("\n") + "\n");
    seal(files);
}

/// A bundle of one file of lines, with these after its own.
fn with_more(bundle: &[u8], more: impl FnOnce(&mut Vec<String>)) -> Vec<u8> {
    let mut files = unpack(bundle);
    let mut last_seq = 0;
    with_lines(&mut files, |lines| {
        more(lines);
        last_seq = number(&serde_json::from_str(lines.last().unwrap()).unwrap(), "seq");
    });
    let name = files[0].text(NAME);
    files[0].set(NAME, &format!("{}-{last_seq}.jsonl", name.split_once('-').unwrap().0));
    seal(&mut files);
    describe(manifest(&mut files), |manifest| manifest["last_seq"] = last_seq.into());
    pack(&files)
}

#[test]
fn a_bundle_that_no_export_made_is_refused_and_leaves_nothing_behind() {
    let (place, elsewhere) = (place(), place());
    let (bundle, mut many) = place.process(true, async |process| {
        let ids = sample(&process).await;
        (process.exported(&ids[..1]).await, process.exported(&ids).await)
    });
    let mut bundles: Vec<(String, Vec<u8>)> = vec![("nothing".to_owned(), Vec::new())];
    for (name, change) in ARCHIVES {
        let mut files = unpack(&bundle);
        change(&mut files);
        bundles.push(((*name).to_owned(), pack(&files)));
    }
    for (name, change) in LINES {
        let mut files = unpack(&bundle);
        with_lines(&mut files, change);
        bundles.push(((*name).to_owned(), pack(&files)));
    }
    for bytes in [1, 511, 512, 513, bundle.len() / 2, bundle.len() - 512, bundle.len() - 1] {
        bundles.push((format!("the first {bytes} bytes"), bundle[..bytes].to_vec()));
    }
    for (name, more) in [("a byte", vec![b'x'; 1]), ("zeros", vec![0; 1024]), ("a block", vec![b'x'; 512])] {
        bundles.push((format!("{name} behind the end"), [&bundle[..], &more].concat()));
    }
    // The padding after a file is checked, too.
    let pad = unpack(&bundle)[0].body.len() + 512;
    assert_ne!(pad % 512, 0, "the first file is padded");
    let mut padded = bundle.clone();
    padded[pad] = 1;
    bundles.push(("something in the padding".to_owned(), padded));
    // The second session is bad, so the first one is not made either.
    let last = many.len() - 600;
    many[last] ^= 1;
    bundles.push(("a second session that is bad".to_owned(), many));

    elsewhere.process(true, async |process| process.create().await);
    elsewhere.process(true, async |process| {
        process.service.ready().await.unwrap();
        let before = stored(&elsewhere);
        for (name, bundle) in &bundles {
            for new_ids in [false, true] {
                let refused = process.import(bundle, 100_000, new_ids).await.expect_err(name);
                assert_eq!(refused.code(), ErrorCode::BundleInvalid, "{name}: {refused}");
                assert_eq!(stored(&elsewhere), before, "{name} left something behind");
            }
        }
        // The same directory takes the good one.
        process.takes(&bundle, false).await;
    });
}

#[test]
fn an_id_that_is_taken_or_spoils_the_order_is_refused_with_advice() {
    place().process(true, async |process| {
        let id = process.create().await;
        process.turn(id, "@say One.").await.unwrap();
        let bundle = process.export(id, false).await;
        // Another one of the same id.
        let mut files = unpack(&bundle);
        with_lines(&mut files, |lines| {
            let last = lines.last_mut().unwrap();
            *last = last.replace(r#""output_tokens":"#, r#""output_tokens":1"#);
        });
        let (reason, message) = process.refuses(&pack(&files), false).await;
        assert!(reason == "exists" && message.contains("new ids"), "{message}");

        let far = "ffffffff-0000-7000-8000-000000000001";
        let mut files = unpack(&bundle);
        for file in &mut files {
            let body = String::from_utf8(file.body.clone()).unwrap().replace(&id.to_string(), far);
            file.fill(body);
        }
        put_into(&mut files, far);
        seal(&mut files);
        assert_eq!(process.refuses(&pack(&files), false).await.0, "future");
        let made = process.import(&pack(&files), usize::MAX, true).await.unwrap();
        assert_eq!(made[0].imported_from.to_string(), far);
        // So does an event that lies there, whatever the session is called.
        let mut files = unpack(&bundle);
        with_lines(&mut files, |lines| {
            let last = lines.last_mut().unwrap();
            let year = last.find(r#""time":""#).unwrap() + 8;
            last.replace_range(year..year + 4, "9999");
        });
        for new_ids in [false, true] {
            let (reason, message) = process.refuses(&pack(&files), new_ids).await;
            assert!(reason == "future" && message.contains("event 4"), "{message}");
        }
    });
}

/// A stranger's session wants to run a tool here: it was approved there, and rules there allow it.
#[test]
fn a_bundle_brings_nothing_that_lets_a_tool_run() {
    const ASK: &str = r#"@call test_ask {"name":"log","line":"x"} @say Done."#;
    let folder = meerkat_testkit::folder();
    let workspace = folder.path().to_str().map(str::to_owned);
    let bundle = Place::new().process(false, async |process| {
        let request = CreateSession { workspace, ..CreateSession::default() };
        let session_id = process.service.create_session(request).await.unwrap().session_id;
        process.turn(session_id, "hello").await.unwrap();
        let attended = StartTurn { attended: true, ..StartTurn::new(session_id, ASK) };
        let _turn = process.service.begin_turn(attended).await.unwrap();
        process.until(session_id, "approval_requested").await;
        process.export(session_id, false).await
    });
    let bundle = &with_more(&bundle, |lines| {
        let asked: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
        let event = |add: u64, fields: Value| {
            let mut event = asked.clone();
            event["seq"] = (number(&asked, "seq") + add).into();
            let members = event.as_object_mut().unwrap();
            members.retain(|name, _| !["name", "arguments", "preview", "rule"].contains(&name.as_str()));
            members.extend(fields.as_object().unwrap().clone());
            event.to_string()
        };
        let decided = event(1, json!({ "type": "approval_decided", "decision": "approve", "reason": null }));
        lines.extend([decided, event(2, json!({ "type": "tool_allowed", "rule": "test_ask" }))]);
    });
    for new_ids in [false, true] {
        let mut here = Place::new();
        here.options.approval.unattended = Unattended::Deny;
        here.process(true, async |process| {
            let session_id = process.takes(bundle, new_ids).await;
            assert_eq!(process.events(session_id).await.last().unwrap()["type"], "session_imported");
            process.turn(session_id, "hello").await.unwrap();
            let fork = process.fork(session_id, Some(0)).await.unwrap();
            process.turn(fork, ASK).await.unwrap();
            for session_id in [session_id, fork] {
                let view = process.view(session_id).await;
                assert_eq!((view.workspace, view.allowed_rules), (None, Vec::new()), "new ids: {new_ids}");
            }
        });
        assert!(!here.dir.path().join("tools/log").exists(), "new ids: {new_ids}");
    }
}

/// Who imports a session reads that its caller's tools are gone, if it had any.
#[test]
fn an_import_says_that_the_tools_of_the_sessions_caller_are_gone() {
    for has_tools in [false, true] {
        let folder = meerkat_testkit::folder();
        let workspace = folder.path().to_str().map(str::to_owned);
        let tool = json!({ "name": "look", "description": "Looks.", "input_schema": { "type": "object" } });
        let client_tools = has_tools.then(|| vec![serde_json::from_value(tool).unwrap()]);
        let bundle = Place::new().process(true, async |process| {
            let request = CreateSession { workspace, client_tools, ..CreateSession::default() };
            let session_id = process.service.create_session(request).await.unwrap().session_id;
            process.turn(session_id, "hello").await.unwrap();
            process.export(session_id, false).await
        });
        Place::new().process(true, async |process| {
            let session_id = process.takes(&bundle, false).await;
            let imported = process.events(session_id).await.pop().unwrap();
            assert_eq!(imported["type"], "session_imported");
            assert_eq!(imported.get("had_client_tools"), has_tools.then_some(&json!(true)));
            let line = wire::decode_event(&imported.to_string()).unwrap().event.human_line();
            assert_eq!(line.contains("tools of its caller"), has_tools, "{line}");
        });
    }
}

/// Events may be far apart. Looking for them in every number between once took for ever.
#[test]
fn steps_and_turns_of_a_session_with_wide_gaps_are_read_at_once() {
    let bundle = Place::new().process(true, async |process| {
        let id = process.create().await;
        process.turn(id, "@say One.").await.unwrap();
        process.service.pin(PinFact { session_id: id, text: "far".to_owned() }).await.unwrap();
        process.export(id, false).await
    });
    let bundle = with_more(&bundle, |lines| {
        // Many at once, far behind the first ones and far before the last one.
        let mut pinned: Value = serde_json::from_str(&lines.pop().unwrap()).unwrap();
        for seq in (1_u64 << 40..(1 << 40) + 2000).chain([1 << 52]) {
            pinned["seq"] = seq.into();
            pinned["type"] = if seq == 1 << 52 { "pinned" } else { "some_other_kind" }.into();
            lines.push(pinned.to_string());
        }
    });
    Place::new().process(true, async |process| {
        let all = ReadHistory::new(process.takes(&bundle, false).await);
        let read = async {
            (process.service.steps(all.clone()).await.unwrap(), process.service.turns(all.clone()).await.unwrap())
        };
        let (steps, turns) = in_time("they are read", read).await;
        assert_eq!((steps.items.len(), steps.next_cursor), (1, None));
        assert_eq!((turns.items.len(), turns.items[0].turn, turns.next_cursor), (1, 0, None));
    });
}
