//! Bundles that no export made: each is refused as a whole, and leaves no file behind.

use std::time::Duration;

use meerkat_service::{
    ErrorCode,
    options::Unattended,
    service::{CreateSession, ForkSession, PinFact, ReadHistory, StartTurn},
};
use serde_json::{Value, json};

use super::{
    archive::{Entry, pack, seal, unpack},
    place, sample, stored,
};
use crate::stored::{Place, Process};

type Change<T> = (&'static str, fn(&mut Vec<T>));

/// Something is wrong with the archive.
const ARCHIVES: &[Change<Entry>] = &[
    ("a symlink", |files| files[0] = files[0].clone().with(156, 1, "2").with(157, 100, "/etc/passwd")),
    ("a hard link", |files| files[0] = files[0].clone().with(156, 1, "1").with(157, 100, "manifest.json")),
    ("a folder", |files| files.insert(0, files[0].clone().of(Vec::new()).with(156, 1, "5").named("events/"))),
    ("an extended header", |files| files.insert(0, files[0].clone().with(156, 1, "x"))),
    ("a long name", |files| files.insert(0, files[0].clone().with(156, 1, "L"))),
    ("an absolute name", |files| files[0] = files[0].clone().with(345, 155, "").named("/etc/passwd")),
    ("an absolute folder", |files| {
        let folder = format!("/{}", files[0].folder());
        files[0] = files[0].clone().with(345, 155, &folder);
    }),
    ("a name that leads out", |files| files[0] = files[0].clone().named("../../manifest.json")),
    ("a blob that leads out", |files| files[0] = files[0].clone().named("blobs/../../../evil")),
    ("a folder that leads out", |files| files[0] = files[0].clone().with(345, 155, "..")),
    ("a folder in capitals", |files| {
        let folder = files[0].folder().to_uppercase();
        files.iter_mut().for_each(|file| *file = file.clone().with(345, 155, &folder));
    }),
    ("another file", |files| files.insert(1, files[0].clone().of(b"#!/bin/sh\n".to_vec()).named("run.sh"))),
    ("a name in another spelling", |files| {
        let name = files[0].name().replace("1-", "01-");
        files[0] = files[0].clone().named(&name);
    }),
    ("an owner", |files| files[0] = files[0].clone().with(265, 32, "root")),
    ("a mode", |files| files[0] = files[0].clone().with(100, 8, "0004755")),
    ("a checksum that is wrong", |files| files[0].header[148] ^= 1),
    ("a negative size", |files| files[0] = files[0].clone().with(124, 12, "-0000000001")),
    ("a size in another form", |files| files[0].header[124] = 0x80),
    ("a huge size", |files| files[0] = files[0].clone().with(124, 12, "77777777777")),
    ("a huge blob", |files| {
        let blob = files.iter().position(|file| file.name().starts_with("blobs/")).unwrap();
        files[blob] = files[blob].clone().with(124, 12, "77777777777");
    }),
    ("a huge manifest", |files| {
        let last = files.len() - 1;
        files[last] = files[last].clone().with(124, 12, "00400000000");
    }),
    ("a file twice", |files| files.insert(1, files[1].clone())),
    ("a session twice", |files| files.extend(files.clone())),
    ("a session within another", |files| {
        let half: Vec<Entry> = files[..1].to_vec();
        files.splice(1..1, half.into_iter().map(|file| file.with(345, 155, "01900000-0000-7000-8000-000000000001")));
    }),
    ("no manifest", |files| drop(files.pop())),
    ("nothing but a manifest", |files| drop(files.drain(..files.len() - 1))),
    ("a missing blob", |files| files.retain(|file| !file.name().starts_with("blobs/"))),
    ("missing events", |files| drop(files.remove(0))),
    ("a blob of another name", |files| {
        let blob = files.iter().position(|file| file.name().starts_with("blobs/")).unwrap();
        files[blob] = files[blob].clone().named(&format!("blobs/{}", "0".repeat(64)));
        seal(files);
    }),
    ("a blob twice", |files| {
        let blob = files.iter().find(|file| file.name().starts_with("blobs/")).unwrap().clone();
        files.insert(1, blob);
        seal(files);
    }),
    ("another's manifest", |files| {
        let folder = "01900000-0000-7000-8000-000000000001";
        files.iter_mut().for_each(|file| *file = file.clone().with(345, 155, folder));
        seal(files);
    }),
    ("a manifest that is none", |files| {
        let last = files.len() - 1;
        files[last] = files[last].clone().of(b"{}".to_vec());
    }),
    ("a manifest of another format", |files| {
        let last = files.len() - 1;
        let text = String::from_utf8(files[last].body.clone()).unwrap().replace("meerkat bundle 1", "meerkat bundle 2");
        files[last] = files[last].clone().of(text.into_bytes());
    }),
    ("events that are none", |files| {
        files[0] = files[0].clone().of(Vec::new());
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

fn with_lines(files: &mut [Entry], change: fn(&mut Vec<String>)) {
    let text = String::from_utf8(files[0].body.clone()).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    change(&mut lines);
    files[0] = files[0].clone().of((lines.join("\n") + "\n").into_bytes());
    seal(files);
}

#[test]
fn a_bundle_that_no_export_made_is_refused_and_leaves_nothing_behind() {
    let (place, elsewhere) = (place(), place());
    let (bundle, mut many) = place.process(true, |process| async move {
        let ids = sample(&process).await;
        (process.exported(&ids[..1]).await, process.exported(&ids).await)
    });
    let mut bundles: Vec<(String, Vec<u8>)> = Vec::new();
    for (name, change) in ARCHIVES {
        let mut files = unpack(&bundle);
        change(&mut files);
        bundles.push(((*name).to_owned(), pack(&files)));
    }
    for (name, change) in LINES {
        let mut files = unpack(&bundle);
        with_lines(&mut files, *change);
        bundles.push(((*name).to_owned(), pack(&files)));
    }
    let no_newline = {
        let mut files = unpack(&bundle);
        let body = files[0].body[..files[0].body.len() - 1].to_vec();
        files[0] = files[0].clone().of(body);
        seal(&mut files);
        pack(&files)
    };
    bundles.push(("a last line without its end".to_owned(), no_newline));
    bundles.push(("nothing".to_owned(), Vec::new()));
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

    elsewhere.process(true, |process| async move {
        process.create().await;
    });
    let kept = elsewhere.data_dir();
    assert!(kept.exists());
    elsewhere.process(true, |process| {
        let elsewhere = &elsewhere;
        async move {
            process.service.ready().await.unwrap();
            let before = stored(elsewhere);
            for (name, bundle) in &bundles {
                for new_ids in [false, true] {
                    let refused = process.import(bundle, 100_000, new_ids).await.expect_err(name);
                    assert_eq!(refused.code(), ErrorCode::BundleInvalid, "{name}: {refused}");
                    assert_eq!(stored(elsewhere), before, "{name} left something behind");
                }
            }
            // The same directory takes the good one.
            process.import(&bundle, 100_000, false).await.unwrap();
        }
    });
}

#[test]
fn an_id_that_is_taken_or_spoils_the_order_is_refused_with_advice() {
    let place = place();
    place.process(true, |process| async move {
        let id = process.create().await;
        process.turn(id, "@say One.").await.unwrap();
        let bundle = process.export(id, false).await.unwrap();
        // Another one of the same id.
        let mut files = unpack(&bundle);
        with_lines(&mut files, |lines| {
            let last = lines.last_mut().unwrap();
            *last = last.replace(r#""output_tokens":"#, r#""output_tokens":1"#);
        });
        let refused = process.import(&pack(&files), usize::MAX, false).await.unwrap_err().body();
        assert_eq!((refused.code, &refused.details["reason"]), (ErrorCode::BundleInvalid, &json!("exists")));
        assert!(refused.message.contains("new ids"), "{}", refused.message);

        let far = "ffffffff-0000-7000-8000-000000000001";
        let mut files = unpack(&bundle);
        for file in &mut files {
            let body = String::from_utf8(file.body.clone()).unwrap().replace(&id.to_string(), far);
            *file = file.clone().of(body.into_bytes()).with(345, 155, far);
        }
        seal(&mut files);
        let refused = process.import(&pack(&files), usize::MAX, false).await.unwrap_err().body();
        assert_eq!((refused.code, &refused.details["reason"]), (ErrorCode::BundleInvalid, &json!("future")));
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
            let refused = process.import(&pack(&files), usize::MAX, new_ids).await.unwrap_err().body();
            assert_eq!((refused.code, &refused.details["reason"]), (ErrorCode::BundleInvalid, &json!("future")));
            assert!(refused.message.contains("event 4"), "{}", refused.message);
        }
    });
}

/// A stranger's session wants to run a tool here: it was approved there, and rules there allow it.
#[test]
fn a_bundle_brings_nothing_that_lets_a_tool_run() {
    let (there, folder) = (Place::new(), meerkat_testkit::folder());
    let workspace = folder.path().to_str().map(str::to_owned);
    let bundle = there.process(false, |process| async move {
        let request = CreateSession { workspace, ..CreateSession::default() };
        let session_id = process.service.create_session(request).await.unwrap().session_id;
        process.turn(session_id, "hello").await.unwrap();
        let prompt = r#"@call test_ask {"name":"log","line":"x"} @say Done."#;
        let attended = StartTurn { attended: true, ..StartTurn::new(session_id, prompt) };
        let _turn = process.service.begin_turn(attended).await.unwrap();
        process.until(session_id, "approval_requested").await;
        process.exported(&[session_id]).await
    });
    let mut files = unpack(&bundle);
    with_lines(&mut files, |lines| {
        let asked: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
        let event = |add: u64, fields: Value| {
            let mut event = asked.clone();
            event["seq"] = (asked["seq"].as_u64().unwrap() + add).into();
            let members = event.as_object_mut().unwrap();
            members.retain(|name, _| !["name", "arguments", "preview", "rule"].contains(&name.as_str()));
            members.extend(fields.as_object().unwrap().clone());
            event.to_string()
        };
        let decided = event(1, json!({ "type": "approval_decided", "decision": "approve", "reason": null }));
        lines.extend([decided, event(2, json!({ "type": "tool_allowed", "rule": "test_ask" }))]);
    });
    let more = files[0].name().replace("7.jsonl", "9.jsonl");
    files[0] = files[0].clone().named(&more);
    seal(&mut files);
    let last = files.len() - 1;
    let mut manifest: Value = serde_json::from_slice(&files[last].body).unwrap();
    manifest["last_seq"] = (manifest["last_seq"].as_u64().unwrap() + 2).into();
    files[last] = files[last].clone().of(serde_json::to_vec(&manifest).unwrap());
    let bundle = &pack(&files);

    for new_ids in [false, true] {
        let mut here = Place::new();
        here.options.approval.unattended = Unattended::Deny;
        let import = async |process: Process| {
            let imported = process.import(bundle, 100_000, new_ids).await.unwrap();
            let session_id = imported[0].session_id;
            assert_eq!(process.events(session_id).await.last().unwrap()["type"], "session_imported");
            process.turn(session_id, "hello").await.unwrap();
            let fork = ForkSession { session_id, turn: Some(0) };
            let fork = process.service.fork(fork).await.unwrap().session_id;
            process.turn(fork, r#"@call test_ask {"name":"log","line":"x"} @say Done."#).await.unwrap();
            for session_id in [session_id, fork] {
                let view = process.service.read(&session_id).await.unwrap();
                assert_eq!((view.workspace, view.allowed_rules), (None, Vec::new()), "new ids: {new_ids}");
            }
        };
        here.process(true, import);
        assert!(!here.dir.path().join("tools/log").exists(), "new ids: {new_ids}");
    }
}

/// Events may be far apart. Looking for them in every number between once took for ever.
#[test]
fn steps_and_turns_of_a_session_with_wide_gaps_are_read_at_once() {
    let (place, elsewhere) = (Place::new(), Place::new());
    let bundle = place.process(true, |process| async move {
        let id = process.create().await;
        process.turn(id, "@say One.").await.unwrap();
        process.service.pin(PinFact { session_id: id, text: "far".to_owned() }).await.unwrap();
        process.exported(&[id]).await
    });
    let last_seq = 1_u64 << 52;
    let mut files = unpack(&bundle);
    with_lines(&mut files, |lines| {
        // Many at once, far behind the first ones and far before the last one.
        let mut pinned: Value = serde_json::from_str(&lines.pop().unwrap()).unwrap();
        for seq in (1_u64 << 40..(1 << 40) + 2000).chain([1 << 52]) {
            pinned["seq"] = seq.into();
            pinned["type"] = if seq == 1 << 52 { "pinned" } else { "some_other_kind" }.into();
            lines.push(pinned.to_string());
        }
    });
    let name = files[0].name();
    let (from, _) = name.split_once('-').unwrap();
    files[0] = files[0].clone().named(&format!("{from}-{last_seq}.jsonl"));
    seal(&mut files);
    let manifest = files.last_mut().unwrap();
    let mut listed: Value = serde_json::from_slice(&manifest.body).unwrap();
    listed["last_seq"] = last_seq.into();
    *manifest = manifest.clone().of(serde_json::to_vec(&listed).unwrap());
    elsewhere.process(true, |process| async move {
        let session_id = process.import(&pack(&files), usize::MAX, false).await.unwrap()[0].session_id;
        let read = async {
            let all = ReadHistory::new(session_id);
            (process.service.steps(all.clone()).await.unwrap(), process.service.turns(all).await.unwrap())
        };
        let (steps, turns) = tokio::time::timeout(Duration::from_secs(60), read).await.expect("they are read for ever");
        assert_eq!(steps.items.len(), 1);
        assert_eq!((turns.items.len(), turns.items[0].turn, steps.next_cursor, turns.next_cursor), (1, 0, None, None));
    });
}
