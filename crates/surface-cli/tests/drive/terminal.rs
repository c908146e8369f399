//! The command line in the test's own process, at a terminal of the test's.

use std::{
    collections::BTreeMap,
    io::{self, BufReader, PipeWriter, Read, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, mpsc},
    thread::JoinHandle,
};

use meerkat_surface_cli::{Environment, Terminal, run};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::mpsc::UnboundedReceiver;

use super::Ran;

/// Command and its environment.
pub(crate) struct Cli {
    args: Vec<String>,
    stdin: Box<dyn Read + Send>,
    env: BTreeMap<String, String>,
    are_terminals: [bool; 3],
    pub(crate) interrupts: Option<UnboundedReceiver<()>>,
    pub(crate) stdout: Box<dyn Write + Send>,
    stderr: Box<dyn Write + Send>,
    pub(crate) dir: Arc<TempDir>,
    pub(crate) below: Option<PathBuf>,
    texts: [Written; 2],
}

/// A command in an empty folder of its own, with nothing on standard input and no terminal.
pub(crate) fn cli(args: &[&str]) -> Cli {
    let texts = [Written::default(), Written::default()];
    let dir = Arc::new(meerkat_testkit::folder());
    std::fs::create_dir(dir.path().join(".git")).unwrap();
    Cli {
        args: std::iter::once("meerkat").chain(args.iter().copied()).map(str::to_owned).collect(),
        stdin: Box::new(io::empty()),
        env: BTreeMap::new(),
        are_terminals: [false; 3],
        interrupts: None,
        stdout: Box::new(texts[0].clone()),
        stderr: Box::new(texts[1].clone()),
        dir,
        below: None,
        texts,
    }
}

impl Cli {
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A folder that commands share.
    pub(crate) fn in_dir(mut self, dir: &Arc<TempDir>) -> Self {
        self.dir = dir.clone();
        self
    }

    pub(crate) fn stdin(self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin_from(io::Cursor::new(bytes.into()))
    }

    pub(crate) fn stdin_from(mut self, reader: impl Read + Send + 'static) -> Self {
        self.stdin = Box::new(reader);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// With the scripted model's test tools.
    pub(crate) fn with_tools(self) -> Self {
        let dir = self.dir().display().to_string();
        self.env("MEERKAT_TOOLS__TEST_DIR", &dir)
    }

    pub(crate) fn on_terminal(mut self) -> Self {
        self.are_terminals = [true; 3];
        self
    }

    /// Does something each time a text is printed on standard output (0) or standard error (1).
    pub(crate) fn when(mut self, stream: usize, text: &'static str, act: impl FnMut() + Send + 'static) -> Self {
        let hook = Hooked { written: self.texts[stream].clone(), text, seen: 0, act: Box::new(act) };
        *[&mut self.stdout, &mut self.stderr][stream] = Box::new(hook);
        self
    }

    /// Presses Ctrl-C when these texts are printed.
    pub(crate) fn interrupted_at(mut self, out: &'static str, err: Option<&'static str>) -> Self {
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        self.interrupts = Some(receiver);
        if let Some(err) = err {
            let sender = sender.clone();
            self = self.when(1, err, move || sender.send(()).unwrap());
        }
        self.when(0, out, move || sender.send(()).unwrap())
    }

    pub(crate) fn run(mut self) -> Ran {
        self.env.entry("HOME".to_owned()).or_insert_with(|| self.dir.path().display().to_string());
        let terminal = Terminal {
            stdin: Box::new(BufReader::new(self.stdin)),
            stdout: self.stdout,
            stderr: self.stderr,
            are_terminals: self.are_terminals,
            has_editor: false,
            has_keyboard: false,
            interrupts: self.interrupts,
            environment: Environment {
                variables: self.env.into_iter().map(|(name, value)| (name, value.into())).collect(),
                dir: self.below.unwrap_or_else(|| self.dir.path().to_owned()),
            },
        };
        let code = run(self.args.into_iter().map(Into::into).collect(), terminal);
        let [out, err] = self.texts.map(|written| written.text());
        Ran { code, out, err }
    }

    /// Runs it beside the test, which writes its lines and reads them.
    pub(crate) fn talk(mut self) -> Talk {
        let (reader, stdin) = io::pipe().unwrap();
        let (sender, lines) = mpsc::channel();
        self.stdin = Box::new(reader);
        self.stdout = Box::new(LineSender { sender, line: Vec::new() });
        Talk { stdin: Some(stdin), lines, running: std::thread::spawn(move || self.run()) }
    }
}

/// A command that runs beside the test.
pub(crate) struct Talk {
    stdin: Option<PipeWriter>,
    lines: mpsc::Receiver<String>,
    running: JoinHandle<Ran>,
}

impl Talk {
    pub(crate) fn say(&mut self, line: &str) {
        self.stdin.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// The next line, as JSON.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Value {
        serde_json::from_str(&self.lines.recv().unwrap()).unwrap()
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, line: &str) -> Value {
        self.say(line);
        self.next()
    }

    /// Ends the input and answers with how the command ended, and the lines that were left.
    pub(crate) fn end(mut self) -> (Ran, Vec<String>) {
        drop(self.stdin.take());
        let ran = self.running.join().unwrap();
        (ran, self.lines.iter().collect())
    }
}

/// Keeps what is written.
#[derive(Clone, Default)]
pub(crate) struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps what is written, and acts when a text is.
struct Hooked {
    written: Written,
    text: &'static str,
    seen: usize,
    act: Box<dyn FnMut() + Send>,
}

impl Write for Hooked {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = self.written.write(bytes)?;
        let seen = self.written.text().matches(self.text).count();
        for _ in self.seen..seen {
            (self.act)();
        }
        self.seen = seen;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends whole lines to the test.
struct LineSender {
    sender: mpsc::Sender<String>,
    line: Vec<u8>,
}

impl Write for LineSender {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            if *byte == b'\n' {
                let line = String::from_utf8(std::mem::take(&mut self.line)).unwrap();
                self.sender.send(line).map_err(io::Error::other)?;
            } else {
                self.line.push(*byte);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
