//! Files of this machine that a prompt shows. They are read here; the service checks them.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use meerkat_service::{
    SessionError,
    service::{Prompt, PromptBlock},
    tool::{Picture, is_unseen},
};

/// Types of files whose names end so. All others are plain text; images are known by their first bytes.
const TYPES: [(&str, &str); 14] = [
    ("csv", "text/csv"),
    ("css", "text/css"),
    ("htm", "text/html"),
    ("html", "text/html"),
    ("js", "application/javascript"),
    ("json", "application/json"),
    ("jsonl", "application/x-ndjson"),
    ("md", "text/markdown"),
    ("sql", "application/sql"),
    ("toml", "application/toml"),
    ("ts", "application/typescript"),
    ("xml", "application/xml"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
];

/// Bytes of a prompt's files together. The service says so too, and has to be sent them for it.
const BYTES_MAX: u64 = 20 * 1024 * 1024;
/// Paths that are offered at once.
const COMPLETIONS_MAX: usize = 200;
/// Signs that end a sentence, and are no part of a path before them unless a file is named so.
const ENDS: &[char] = &['?', '.', ',', '!', ':', ';', ')'];

/// Makes the prompt of a text and files, which come before it.
pub(crate) fn attached<P: AsRef<Path>>(files: &[P], text: String) -> Result<Prompt, SessionError> {
    if files.is_empty() {
        return Ok(text.into());
    }
    let mut room_bytes = BYTES_MAX;
    let blocks = files.iter().map(|path| block(path.as_ref(), &mut room_bytes));
    let mut blocks = blocks.collect::<Result<Vec<_>, _>>()?;
    blocks.push(PromptBlock::text(text));
    Ok(blocks.into())
}

/// Files that a line of a chat names.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Named {
    /// Those that the model is shown.
    pub(crate) files: Vec<PathBuf>,
    /// Paths after an `@` that name no file.
    pub(crate) missing: Vec<String>,
    /// Files that are not shown, because the text has several lines and they are elsewhere.
    pub(crate) elsewhere: Vec<PathBuf>,
}

/// Finds the files that a line names by `@` before a path. A line of nothing but whole paths names them, too: so a
/// terminal pastes files that are dropped on it. All other paths are words, for a text may have been copied from anywhere.
/// So a text of several lines names files of the folder `here` alone.
pub(crate) fn named(line: &str, home: Option<&Path>, here: &Path) -> Named {
    let words = words(line);
    let is_here = |path: &Path| here.canonicalize().and_then(|here| Ok(path.canonicalize()?.starts_with(here)));
    let is_copied = line.trim().contains('\n');
    let are_dropped = words.iter().all(is_whole_path);
    let mut named = Named::default();
    for Word { is_marked, is_quoted, text } in words {
        let found = match is_marked {
            true => file_of(&text, is_quoted, home),
            false => are_dropped.then(|| PathBuf::from(&text)),
        };
        match found {
            Some(path) if is_copied && !is_here(&path).unwrap_or(false) => named.elsewhere.push(path),
            Some(path) if !named.files.contains(&path) => named.files.push(path),
            None if is_marked && is_quoted => named.missing.push(text),
            None if is_marked && text.trim_end_matches(ENDS).contains(['/', '.']) => {
                named.missing.push(text.trim_end_matches(ENDS).to_owned());
            }
            Some(_) | None => {}
        }
    }
    named
}

/// Returns true if a line begins with the whole path of a file, and so with no command.
pub(crate) fn begins_with_file(line: &str) -> bool {
    words(line).first().is_some_and(is_whole_path)
}

fn is_whole_path(word: &Word) -> bool {
    let path = Path::new(&word.text);
    !word.is_marked && path.is_absolute() && path.is_file()
}

/// Finds the file of a path after an `@`.
fn file_of(text: &str, is_quoted: bool, home: Option<&Path>) -> Option<PathBuf> {
    let ends = if is_quoted { &[] } else { ENDS };
    [text, text.trim_end_matches(ends)].into_iter().map(|text| at_home(text, home)).find(|path| path.is_file())
}

fn at_home(text: &str, home: Option<&Path>) -> PathBuf {
    match (text.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(text),
    }
}

/// Lists the paths that can go on a line which ends in an `@` and the beginning of a path, and where that begins.
pub(crate) fn completions(line: &str, home: Option<&Path>) -> (usize, Vec<String>) {
    let begun = line.rfind('@').filter(|at| line[..*at].chars().next_back().is_none_or(char::is_whitespace));
    let Some(start) = begun.map(|at| at + 1) else { return (line.len(), Vec::new()) };
    let (typed, rest) = plain_word(&line[start..]);
    if !rest.is_empty() {
        return (line.len(), Vec::new());
    }
    let (folder, begin) = typed.split_at(typed.rfind('/').map_or(0, |at| at + 1));
    let listed = std::fs::read_dir(if folder.is_empty() { ".".into() } else { at_home(folder, home) });
    let fitting = listed.into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        // A name that a terminal would show as another one is not offered.
        let is_fitting =
            name.starts_with(begin) && (!name.starts_with('.') || begin.starts_with('.')) && !name.contains(is_unseen);
        let end = if entry.path().is_dir() { "/" } else { "" };
        is_fitting.then(|| escaped(&format!("{folder}{name}{end}")))
    });
    let mut paths: Vec<String> = fitting.take(COMPLETIONS_MAX).collect();
    paths.sort();
    (start, paths)
}

/// Puts a backslash before what would end a word.
fn escaped(path: &str) -> String {
    let is_special = |c: char| c.is_whitespace() || matches!(c, '\\' | '"' | '\'');
    path.chars().flat_map(|c| [Some('\\').filter(|_| is_special(c)), Some(c)]).flatten().collect()
}

/// Word of a line: what is between blanks, or in quotes.
struct Word {
    /// True after an `@`.
    is_marked: bool,
    is_quoted: bool,
    /// Without the `@`, the quotes and the backslashes before other characters.
    text: String,
}

fn words(line: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let (path, is_marked) = rest.strip_prefix('@').map_or((rest, false), |path| (path, true));
        let quote = path.chars().next().filter(|c| matches!(c, '"' | '\''));
        let quoted = quote.and_then(|quote| path[1..].split_once(quote));
        let (text, after) = match quoted {
            Some((text, after)) => (text.to_owned(), after),
            None => plain_word(path),
        };
        words.push(Word { is_marked, is_quoted: quoted.is_some(), text });
        rest = after.trim_start();
    }
    words
}

/// Takes a word without quotes, in which a character after a backslash is itself, and returns the rest, too.
fn plain_word(line: &str) -> (String, &str) {
    let (mut text, mut chars) = (String::new(), line.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => text.extend(chars.next().map(|(_, c)| c)),
            c if c.is_whitespace() => return (text, &line[at..]),
            c => text.push(c),
        }
    }
    (text, "")
}

/// Reads one file, which takes its bytes from the room.
fn block(path: &Path, room_bytes: &mut u64) -> Result<PromptBlock, SessionError> {
    let refused = |why: String| SessionError::invalid("file", format!("{}: {why}", path.display()));
    let failed = |error: io::Error| refused(error.to_string());
    // A pipe would be waited for, and a device may have no end.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(refused("it is not a file".to_owned()));
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(*room_bytes + 1).read_to_end(&mut bytes).map_err(failed)?;
    let left = room_bytes.checked_sub(bytes.len() as u64);
    *room_bytes = left.ok_or_else(|| refused(format!("with it the files have more than {BYTES_MAX} bytes")))?;
    if let Some(media_type) = Picture::media_type(&bytes) {
        return Ok(PromptBlock::image(media_type, bytes));
    }
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| refused("its name is not valid UTF-8".to_owned()))?;
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
    let known = TYPES.iter().find(|(known, _)| *known == ending).map_or("text/plain", |(_, media_type)| media_type);
    let media_type = if bytes.starts_with(b"%PDF-") { "application/pdf" } else { known };
    Ok(PromptBlock::file(name, media_type, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_files_that_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["a.png", "b c.txt", "d."] {
            std::fs::write(path(name), "x").unwrap();
        }
        let (plain, blank, dotted) = (path("a.png"), path("b c.txt"), path("d."));
        let [shown, quoted, end] = [&plain, &blank, &dotted].map(|path| path.display().to_string());
        let escaped = quoted.replace(' ', "\\ ");
        for (line, expected) in [
            (format!("What is @{shown} ?"), vec![&plain]),
            (format!("What is @{shown}?"), vec![&plain]),
            (format!("(See @{shown}): @{end}"), vec![&plain, &dotted]),
            ("What is @~/a.png!".to_owned(), vec![&plain]),
            (format!("@\"{quoted}\" @{shown} @{shown}"), vec![&blank, &plain]),
            (format!("See @{escaped}."), vec![&blank]),
            // Dropped on the terminal.
            (format!(" {shown}\t'{quoted}' "), vec![&plain, &blank]),
            (format!("{escaped} {shown}"), vec![&blank, &plain]),
            // Words.
            (format!("Fix the panic in {shown}"), vec![]),
            (format!("{shown} has a panic"), vec![]),
            (format!("{shown} @{quoted}"), vec![]),
            (format!("@say hello @ '{quoted} \"@"), vec![]),
            (format!("in{shown}"), vec![]),
            (String::new(), vec![]),
        ] {
            let named = named(&line, Some(folder.path()), Path::new("/none"));
            assert_eq!(named.files.iter().collect::<Vec<_>>(), expected, "{line}");
            assert_eq!(named.elsewhere, Vec::<PathBuf>::new(), "{line}");
        }
        let missing = |line: &str| named(line, None, Path::new("/none")).missing;
        assert_eq!(
            missing(&format!("@{shown}.jpg, @\"none\" @b.txt? @~/a.png")),
            [&format!("{shown}.jpg"), "none", "b.txt", "~/a.png"]
        );
        assert_eq!(missing("@say hello. @ me@example.org @ann: /etc/none"), Vec::<String>::new());
        assert_eq!(missing(&format!("@{}", folder.path().display())).len(), 1);
    }

    #[test]
    fn a_text_of_several_lines_names_files_of_its_folder_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (here, there) = (folder.path().join("here"), folder.path().join("there"));
        for folder in [&here, &there] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("a"), "x").unwrap();
        }
        std::os::unix::fs::symlink(there.join("a"), here.join("link")).unwrap();
        let [inside, outside, link] = [here.join("a"), there.join("a"), here.join("link")];
        let of = |text: &str| named(text, Some(folder.path()), &here);
        let log = format!("Traceback\n  @{} @{} @{} @~/there/a", inside.display(), outside.display(), link.display());
        let found = of(&log);
        assert_eq!((found.files, found.elsewhere.len()), (vec![inside], 3));
        let dropped = format!("{}\n{}", outside.display(), outside.display());
        assert_eq!(of(&dropped).files, Vec::<PathBuf>::new());
        assert_eq!(of(&format!("@{}\n", outside.display())).files, [outside]);
    }

    #[test]
    fn a_path_after_an_at_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("notes")).unwrap();
        for name in ["note one.txt", "notes/b.txt", "shot.png", ".hidden", "notes\u{202e}gnp.exe"] {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        let of = |typed: &str| {
            let line = format!("See {typed}");
            let (start, paths) = completions(&line, Some(folder.path()));
            paths.into_iter().map(|path| format!("{}{path}", &line[4..start])).collect::<Vec<_>>()
        };
        assert_eq!(of("@~/no"), ["@~/note\\ one.txt", "@~/notes/"]);
        assert_eq!(of("@~/notes/"), ["@~/notes/b.txt"]);
        assert_eq!(of("@~/note\\ "), ["@~/note\\ one.txt"]);
        assert_eq!((of("@~/.").as_slice(), of("@~/")[2].as_str()), (&["@~/.hidden".to_owned()][..], "@~/shot.png"));
        for nothing in ["a@~/no", "@~/no what", "~/no", "@~/x", ""] {
            assert_eq!(of(nothing), Vec::<String>::new(), "{nothing}");
        }
        // What was completed names the file.
        let line = format!("See {}", of("@~/note\\ ")[0]);
        let here = Path::new("/none");
        assert_eq!(named(&line, Some(folder.path()), here).files, [folder.path().join("note one.txt")]);
    }

    #[test]
    fn what_is_no_file_or_too_large_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let refusal = |files: &[PathBuf]| attached(files, "x".to_owned()).unwrap_err().to_string();
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        for path in [folder.path().to_owned(), "/dev/zero".into(), fifo] {
            assert!(refusal(std::slice::from_ref(&path)).ends_with("it is not a file"), "{}", path.display());
        }
        let large = |name: &str, bytes| {
            let path = folder.path().join(name);
            File::create(&path).unwrap().set_len(bytes).unwrap();
            path
        };
        let (half, more, huge) =
            (large("half", BYTES_MAX / 2), large("more", BYTES_MAX / 2 + 1), large("huge", 1 << 40));
        assert!(attached(&[&half, &half], "x".to_owned()).is_ok());
        for files in [vec![half, more], vec![huge]] {
            assert!(refusal(&files).ends_with("with it the files have more than 20971520 bytes"));
        }
    }

    #[test]
    fn a_file_is_known_by_its_bytes_or_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let is = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            block(&path, &mut 100).unwrap()
        };
        assert_eq!(is("a.txt", b"\x89PNG\r\n\x1a\nx"), PromptBlock::image("image/png", &b"\x89PNG\r\n\x1a\nx"[..]));
        assert_eq!(is("b", b"%PDF-1.7"), PromptBlock::file("b", "application/pdf", &b"%PDF-1.7"[..]));
        assert_eq!(is("c.JSON", b"{}"), PromptBlock::file("c.JSON", "application/json", &b"{}"[..]));
        assert_eq!(is("d.rs", b"fn"), PromptBlock::file("d.rs", "text/plain", &b"fn"[..]));
        assert!(
            begins_with_file(&format!("{} What?", folder.path().join("b").display())) && !begins_with_file("/help")
        );
        let refusal = attached(&[folder.path().join("none")], "x".to_owned()).unwrap_err();
        assert!(refusal.to_string().contains("none: No such file"), "{refusal}");
    }
}
