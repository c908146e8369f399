//! A chat at a terminal: what its keys mean, and how often somebody is asked.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    process::{Child, Stdio},
    sync::mpsc,
};

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use tempfile::TempDir;

use crate::drive::{PATIENCE, meerkat};

/// A chat, and the terminal that it runs at.
struct Typed {
    keys: File,
    shown: mpsc::Receiver<Vec<u8>>,
    /// All that was shown so far, and how much of it was waited for.
    screen: String,
    at: usize,
    chat: Child,
    dir: TempDir,
}

impl Typed {
    fn start() -> Self {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let size = Winsize { ws_row: 50, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&keys, size).unwrap();
        let name = ptsname(&keys, Vec::new()).unwrap().into_string().unwrap();
        let line = || Stdio::from(File::options().read(true).write(true).open(&name).unwrap());
        let dir = TempDir::new().unwrap();
        let mut command = meerkat(&dir, &["chat"]);
        command.env("NO_COLOR", "1").env("TERM", "xterm").env("MEERKAT_TOOLS__TEST_DIR", dir.path());
        let chat = command.stdin(line()).stdout(line()).stderr(line()).spawn().unwrap();
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
        Self { keys, shown, screen: String::new(), at: 0, chat, dir }
    }

    /// Takes what is shown; answers whether there will be more. Like any terminal it says where its cursor is.
    #[track_caller]
    fn look(&mut self) -> bool {
        match self.shown.recv_timeout(PATIENCE) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                for _ in text.matches("\x1b[6n") {
                    self.keys.write_all(b"\x1b[1;1R").unwrap();
                }
                self.screen.push_str(&text);
                true
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => false,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("nothing more is shown: {}", self.screen),
        }
    }

    /// Waits until a text is shown.
    #[track_caller]
    fn wait(&mut self, text: &str) {
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
    fn prompt(&mut self) {
        self.wait("\x1b[?2004h");
    }

    fn keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn paste(&mut self, text: &str) {
        self.keys(&format!("\x1b[200~{}\x1b[201~", text.replace('\n', "\r")));
    }

    /// Leaves, and answers with all that was shown.
    #[track_caller]
    fn leave(mut self) -> String {
        self.prompt();
        self.keys("\x04");
        while self.look() {}
        assert!(self.chat.wait().unwrap().success(), "{}", self.screen);
        self.screen
    }
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
fn an_interrupt_clears_what_is_half_typed_and_leaves_nothing() {
    let mut typed = Typed::start();
    typed.prompt();
    typed.keys("half a line\x03");
    typed.prompt();
    typed.keys("@say Whole.\r");
    let screen = typed.leave();
    assert!(screen.contains("\x1b[?2004lWhole.\r\n") && !screen.contains("again leaves"), "{screen}");
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
            typed.wait("n and why: ");
            typed.prompt();
            typed.keys(&format!("{answer}\r"));
        }
        typed.prompt();
        assert_eq!(typed.dir.path().join(name).exists(), is_run, "{name}: {}", typed.screen);
    }
    typed.keys("\r");
    let screen = typed.leave();
    assert_eq!(screen.matches("Allow test_ask").count(), 6, "{screen}");
    assert!(screen.contains("no rule is proposed for it"), "{screen}");
}

#[test]
fn an_answer_may_allow_a_rule_for_the_session_or_for_always() {
    let mut typed = Typed::start();
    typed.prompt();
    let call = |name: &str| format!("@call test_ask {{\"name\":\"{name}\",\"line\":\"x\",\"lasting\":true}}\r");
    for (name, answer) in [("first", "session"), ("second", "always")] {
        typed.keys(&call(name));
        typed.wait("+x");
        typed.wait(&format!("session or always for `test_ask: {name}`, or n and why: "));
        typed.prompt();
        typed.keys(&format!("{answer}\r"));
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
