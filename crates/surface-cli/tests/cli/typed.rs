//! A chat at a terminal: what its keys mean, and how often somebody is asked.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    num::NonZeroU16,
    os::{
        fd::AsFd,
        unix::{fs::OpenOptionsExt as _, net::UnixStream},
    },
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
};

use meerkat_client::Speaker;
use meerkat_testkit::{PATIENCE, until};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, mknodat},
    io::{FdFlags, fcntl_setfd},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use serde_json::json;
use tempfile::TempDir;

use crate::drive::{meerkat, ran, signal};

/// A chat or another command, and the terminal that it runs at.
pub(crate) struct Typed {
    keys: File,
    shown: mpsc::Receiver<Vec<u8>>,
    /// All that was shown so far, and how much of it was waited for.
    screen: String,
    at: usize,
    terminal: vt100::Parser,
    chat: Child,
    dir: TempDir,
}

/// Rows and columns of the terminal at first.
const SIZE: (u16, u16) = (50, 200);

/// The next text that a terminal answers: the request for its cursor's place.
const WHERE: &str = "\x1b[6n";

fn size((rows, columns): (u16, u16)) -> (NonZeroU16, NonZeroU16) {
    (rows.try_into().unwrap(), columns.try_into().unwrap())
}

impl Typed {
    pub(crate) fn start() -> Self {
        let dir = meerkat_testkit::folder();
        let mut command = meerkat(&dir, &["chat"]);
        command.env("MEERKAT_TOOLS__TEST_DIR", dir.path());
        Self::begin(command, dir)
    }

    /// Starts a command at a terminal, in this home folder.
    pub(crate) fn begin(command: Command, dir: TempDir) -> Self {
        Self::begin_at("xterm", command, dir)
    }

    /// Starts a command at a terminal of a kind.
    pub(crate) fn begin_at(kind: &str, mut command: Command, dir: TempDir) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        // A program that another test starts right now must not keep the terminal open.
        #[cfg(target_os = "linux")]
        let flags = flags | OpenptFlags::CLOEXEC;
        let keys = openpt(flags).unwrap();
        fcntl_setfd(&keys, FdFlags::CLOEXEC).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        set_size(&keys, SIZE);
        command.env("NO_COLOR", "1").env("TERM", kind);
        let (rows, columns) = size(SIZE);
        let terminal = vt100::Parser::new(rows, columns, 0);
        let chat = command.stdin(line(&keys)).stdout(line(&keys)).stderr(line(&keys)).spawn().unwrap();
        let keys = File::from(keys);
        let mut screen = keys.try_clone().unwrap();
        let (sender, shown) = mpsc::channel();
        // A terminal whose other side is closed cannot be read any more.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len) = screen.read(&mut bytes) {
                if sender.send(bytes[..len].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { keys, shown, screen: String::new(), at: 0, terminal, chat, dir }
    }

    /// Takes what is shown; answers whether there will be more. Like any terminal it says where its cursor is.
    #[track_caller]
    fn look(&mut self) -> bool {
        match self.shown.recv_timeout(PATIENCE) {
            Ok(bytes) => {
                self.take(&bytes);
                true
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => false,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("nothing more is shown: {}", self.screen),
        }
    }

    /// Takes what is shown so far, and waits for nothing.
    pub(crate) fn glance(&mut self) {
        while let Ok(bytes) = self.shown.try_recv() {
            self.take(&bytes);
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let mut pieces = text.split(WHERE).peekable();
        while let Some(piece) = pieces.next() {
            self.terminal.process(piece.as_bytes());
            if pieces.peek().is_some() {
                let (row, column) = self.terminal.screen().cursor_position();
                write!(self.keys, "\x1b[{};{}R", row + 1, column + 1).unwrap();
            }
        }
        self.screen.push_str(&text);
    }

    /// Waits until a text is shown.
    #[track_caller]
    pub(crate) fn wait(&mut self, text: &str) {
        loop {
            if let Some(found) = self.screen[self.at..].find(text) {
                self.at += found + text.len();
                return;
            }
            assert!(self.look(), "{text:?} was never shown: {}", self.screen);
        }
    }

    /// Waits until a line can be typed, and a paste is told from what is typed.
    #[track_caller]
    pub(crate) fn prompt(&mut self) {
        self.wait("\x1b[?2004h");
    }

    /// Waits until a question can be answered. The terminal may show keys that were typed before within its line.
    #[track_caller]
    pub(crate) fn question(&mut self) {
        self.wait("(you may add why):");
        self.wait(" ");
    }

    /// Returns all that was shown so far.
    pub(crate) fn screen(&self) -> &str {
        &self.screen
    }

    pub(crate) fn keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Returns the lines of the screen, without those that are empty.
    pub(crate) fn lines(&self) -> Vec<String> {
        let text = self.terminal.screen().contents();
        text.lines().map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty()).collect()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// Presses Ctrl-C while nothing reads a line.
    pub(crate) fn interrupt(&self) {
        signal(&self.chat, "INT");
    }

    pub(crate) fn resize(&mut self, rows: u16, columns: u16) {
        set_size(&self.keys, (rows, columns));
        let (rows, columns) = size((rows, columns));
        self.terminal.set_size(rows, columns);
        signal(&self.chat, "WINCH");
    }

    pub(crate) fn paste(&mut self, text: &str) {
        self.keys(&format!("\x1b[200~{}\x1b[201~", text.replace('\n', "\r")));
    }

    /// Leaves, and answers with all that was shown.
    #[track_caller]
    pub(crate) fn leave(mut self) -> String {
        self.prompt();
        self.keys("\x04");
        self.end().0
    }

    /// Ends the command by Ctrl-C, and answers with the home folder.
    #[track_caller]
    pub(crate) fn interrupted(mut self) -> TempDir {
        self.interrupt();
        assert!(!self.chat.wait().unwrap().success(), "{}", self.screen);
        self.dir
    }

    /// Kills the command, and answers with the home folder.
    pub(crate) fn killed(mut self) -> TempDir {
        self.chat.kill().unwrap();
        self.chat.wait().unwrap();
        self.dir
    }

    /// Takes the terminal away; answers with the exit code. No signal says so: the terminal controls nothing.
    fn hang_up(self) -> Option<i32> {
        let (mut chat, _dir) = self.without_terminal();
        until("the chat ends", || chat.try_wait().unwrap().is_some());
        chat.wait().unwrap().code()
    }

    /// Takes the terminal away.
    fn without_terminal(self) -> (Child, TempDir) {
        let Self { keys, shown, chat, dir, .. } = self;
        drop(shown);
        // The thread that reads the other side closes it after the next text.
        line(&keys).write_all(b"x").unwrap();
        drop(keys);
        (chat, dir)
    }

    /// Waits for the command's end, and answers with all that was shown, and the home folder.
    #[track_caller]
    pub(crate) fn end(mut self) -> (String, TempDir) {
        while self.look() {}
        assert!(self.chat.wait().unwrap().success(), "{}", self.screen);
        (self.screen, self.dir)
    }
}

/// Opens the command's side of a terminal.
fn line(keys: impl AsFd) -> File {
    let name = ptsname(keys, Vec::new()).unwrap().into_string().unwrap();
    File::options().read(true).write(true).open(name).unwrap()
}

fn set_size(terminal: impl AsFd, (ws_row, ws_col): (u16, u16)) {
    tcsetwinsize(terminal, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

#[test]
fn a_paste_of_three_lines_is_one_prompt() {
    let mut typed = Typed::start();
    typed.prompt();
    typed.paste("one\ntwo\nthree");
    typed.keys("\r");
    let screen = typed.leave();
    assert_eq!(screen.matches("You said").count(), 1, "{screen}");
}

#[test]
fn the_status_line_has_the_effort() {
    let mut typed = Typed::start();
    typed.prompt();
    typed.keys("/effort high\r");
    typed.wait("From here on the effort of scripted is high.");
    typed.prompt();
    typed.keys("@say Hi.\r");
    typed.wait("scripted, effort high, ");
    typed.leave();
}

/// A text may have been copied from anywhere: a path in it shows no file without an `@`.
#[test]
fn a_chat_says_which_files_the_model_is_shown() {
    let mut typed = Typed::start();
    let path = typed.folder().join("notes.txt");
    std::fs::write(&path, "Dig.").unwrap();
    let shown = path.display().to_string();
    typed.prompt();
    // A tab completes the path.
    let begun = shown.strip_suffix("es.txt").unwrap();
    typed.keys(&format!("Is @none.txt like @{begun}\t"));
    typed.wait("notes.txt");
    typed.keys("?\r");
    typed.wait("There is no file none.txt;");
    typed.wait(&format!("The model is shown {shown}."));
    typed.prompt();
    typed.keys(&format!("Why is {shown} long?\r"));
    typed.wait("You said");
    typed.prompt();
    typed.keys(&format!("{shown} has words.\r"));
    typed.wait("The file is not shown: write @ before its path.");
    typed.prompt();
    // Dropped on the terminal.
    typed.paste(&shown);
    typed.keys("\r");
    typed.wait(&format!("The model is shown {shown}."));
    typed.prompt();
    typed.keys("\x04");
    let (screen, dir) = typed.end();
    assert_eq!(screen.matches("The model is shown").count(), 2, "{screen}");
    let said = ran(&mut meerkat(&dir, &["sessions", "history", "last"])).out;
    assert_eq!(said.matches("[File 1: notes.txt, text/plain, 4 bytes]").count(), 2, "{said}");
}

#[test]
fn an_interrupt_clears_what_is_half_typed_and_leaves_nothing() {
    let mut typed = Typed::start();
    typed.prompt();
    typed.keys("half a line\x03");
    typed.prompt();
    typed.keys("@say Whole.\r");
    typed.prompt();
    let lines = typed.lines();
    assert!(lines.contains(&"Whole.".to_owned()), "{lines:#?}");
    typed.keys("\r");
    let screen = typed.leave();
    assert!(!screen.contains("again leaves"), "{screen}");
}

#[test]
fn a_chat_ends_when_its_terminal_is_gone() {
    let call = "@call test_ask {\"name\":\"asked\",\"line\":\"x\"}\r";
    for (typed_before, shown) in
        [("", None), (call, Some("(you may add why):")), ("@say Wait. @stall\r", Some("Wait."))]
    {
        let mut typed = Typed::start();
        typed.prompt();
        typed.keys(typed_before);
        if let Some(shown) = shown {
            typed.wait(shown);
        }
        let code = typed.hang_up();
        // Only text that is being shown can fail before the end of the input is read.
        let is_showing = typed_before.contains("@stall");
        assert!(code == Some(0) || is_showing && code == Some(60), "{typed_before}: {code:?}");
    }
}

/// Returns true if the owner of a data directory begins no session any more, or has ended.
fn has_begun_to_end(data_dir: &Path) -> bool {
    let Ok(mut owner) = UnixStream::connect(data_dir.join("socket")) else { return true };
    let mut answers = BufReader::new(owner.try_clone().unwrap()).lines();
    let hello = json!({ "speaker": Speaker::own(), "settings": [] });
    [("owner/hello", hello), ("session/create", json!({}))].into_iter().enumerate().any(|(id, (method, params))| {
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let answer = writeln!(owner, "{request}").ok().and_then(|()| answers.next()?.ok());
        answer.is_none_or(|answer| answer.contains("SHUTTING_DOWN"))
    })
}

/// The other's turn was lost, with what was streamed of it. The end of the terminal comes three times: from the terminal, the
/// kernel and the shell.
#[test]
fn when_the_terminal_of_an_owner_closes_the_turns_of_others_may_end() {
    let gated = "@say First. @call shell {\"command\":\"cat gate\"} @step @say Last.";
    let (chat, run) = (&["chat"][..], &["run", "@say Mine. @stall"][..]);
    for (args, drain_ms, prompt) in
        [(chat, "3600000", gated), (run, "3600000", gated), (chat, "300", "@say First. @stall")]
    {
        let dir = meerkat_testkit::folder();
        let (project, data_dir) = (dir.path().join("project"), dir.path().join("data"));
        std::fs::create_dir(&project).unwrap();
        mknodat(CWD, project.join("gate"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let mut command = meerkat(&dir, args);
        // A log line that cannot be written must end nothing.
        command.env("MEERKAT_SERVE__DRAIN_MS", drain_ms).env("MEERKAT_LOG__LEVEL", "debug");
        command.env("MEERKAT_DATA_DIR", &data_dir);
        let mut owner = Typed::begin(command, dir);
        owner.wait(if args == chat { "\x1b[?2004h" } else { "Mine." });

        let theirs = ["run", "--workspace", "project", "--allow", "shell", "--events", prompt];
        let mut other = meerkat(owner.folder(), &theirs);
        let mut other = other.env("MEERKAT_DATA_DIR", &data_dir).stdout(Stdio::piped()).spawn().unwrap();
        let mut events = BufReader::new(other.stdout.take().unwrap()).lines().map(Result::unwrap);
        events.find(|line| line.contains("First.")).unwrap();
        let (mut owner, _dir) = owner.without_terminal();
        (0..2).for_each(|_| signal(&owner, "HUP"));
        until("the owner begins to end", || has_begun_to_end(&data_dir));
        if prompt == gated {
            let mut gate = File::options();
            let gate = gate.write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
            let open = || gate.open(project.join("gate")).and_then(|mut gate| gate.write_all(b"open")).is_ok();
            until("the call goes on or is lost", || open() || other.try_wait().unwrap().is_some());
        }

        let rest: Vec<String> = events.collect();
        let has = |text: &str| rest.iter().any(|line| line.contains(text));
        let is_whole = (has("Last."), has("turn_completed"), other.wait().unwrap().success());
        assert_eq!(is_whole, (prompt == gated, prompt == gated, prompt == gated), "{rest:#?}");
        assert_eq!(has(r#""type":"partial_text""#) && has(r#""reason":"shutting_down""#), prompt != gated, "{rest:#?}");
        until("the owner ends", || {
            // One that runs a turn of its own gives it as much time, until it is asked again. Signals that come together are
            // one.
            if args != chat {
                signal(&owner, "TERM");
            }
            owner.try_wait().unwrap().is_some()
        });
        assert_eq!(owner.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn an_answer_decides_about_a_call_and_without_a_rule_about_no_other() {
    let mut typed = Typed::start();
    typed.prompt();
    for (name, answers, is_run) in [
        ("refused", &["n"][..], false),
        ("repeated", &["perhaps", "y"], true),
        ("alone", &["always", "session", "y"], true),
    ] {
        typed.keys(&format!("@call test_ask {{\"name\":\"{name}\",\"line\":\"x\"}}\r"));
        for answer in answers {
            typed.question();
            typed.prompt();
            typed.keys(&format!("{answer}\r"));
        }
        typed.prompt();
        assert_eq!(typed.dir.path().join(name).exists(), is_run, "{name}: {}", typed.screen);
    }
    typed.keys("\r");
    let screen = typed.leave();
    assert_eq!(screen.matches("Allow test_ask").count(), 6, "{screen}");
    assert!(screen.contains("no rule can allow it for later"), "{screen}");
}

#[test]
fn an_answer_may_allow_a_rule_for_the_session_or_for_always() {
    let mut typed = Typed::start();
    typed.prompt();
    let call = |name: &str| format!("@call test_ask {{\"name\":\"{name}\",\"line\":\"x\",\"lasting\":true}}\r");
    for (name, answer) in [("first", "session"), ("second", "always")] {
        typed.keys(&call(name));
        typed.wait("+x");
        typed.wait(&format!("session or always = every `test_ask: {name}`, "));
        typed.question();
        typed.prompt();
        typed.keys(&format!("{answer}\r"));
        if answer == "always" {
            typed.wait("allowed in every folder from now on, by your configuration");
        }
        typed.prompt();
        typed.keys(&call(name));
        typed.prompt();
        let lines = std::fs::read_to_string(typed.dir.path().join(name)).unwrap();
        assert_eq!(lines, "x\nx\n", "{name}: {}", typed.screen);
    }
    let config = std::fs::read_to_string(typed.dir.path().join(".config/meerkat/meerkat.toml")).unwrap();
    assert_eq!(config, "[tools.approval]\n\"test_ask: second\" = \"allow\"\n");
    typed.keys("\r");
    let screen = typed.leave();
    assert_eq!(screen.matches("Allow test_ask").count(), 2, "{screen}");
}
