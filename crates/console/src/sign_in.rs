//! Browsers that have signed in. One does so with a code that only a holder of the token can make; from then on it shows
//! two secrets, a cookie that no script can read and a text that no other port's page can send. Who shows a page to
//! somebody asks first who serves it: a question and its reply prove the same token to both sides, and tell it to neither.
//!
//! The file of sign-ins has their digests alone. It is read for each request, so whoever deletes it signs all out.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// Milliseconds for which a code can be used.
const CODE_MS: u64 = 60_000;

/// Seconds after which a browser must sign in again.
pub const SIGN_IN_SECONDS: u64 = 12 * 60 * 60;

/// Most sign-ins at one time; a further one ends the oldest.
const SIGN_INS_MAX: usize = 32;

/// Most codes that are remembered as used. Each was made with the token.
const USED_MAX: usize = 1024;

/// Hexadecimal digits of a code's random part.
const NONCE_DIGITS: usize = 32;

type Hash = [u8; 32];

fn hash(parts: &[&[u8]]) -> Hash {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// A digest that only a holder of `token` can make, of texts that are told apart by their lengths.
fn keyed(token: &str, parts: &[&[u8]]) -> Hash {
    let key = hash(&[b"meerkat console", token.as_bytes()]);
    hash(&[&key, &hash(&[&key, &hash(parts)])])
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_same(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

/// Makes a code for one sign-in to the page at `origin`, such as `http://127.0.0.1:7670`. `nonce` is 32 random
/// hexadecimal digits.
#[must_use]
pub fn code(token: &str, origin: &str, nonce: &str, now_ms: u64) -> String {
    sealed(CODE, token, origin, nonce, now_ms)
}

/// Makes a question to what listens at `origin`. It signs nobody in; only a server with the same token can [`reply`].
#[must_use]
pub fn question(token: &str, origin: &str, nonce: &str, now_ms: u64) -> String {
    sealed(QUESTION, token, origin, nonce, now_ms)
}

/// Makes the reply to a question.
#[must_use]
pub fn reply(token: &str, question: &str) -> String {
    digits(&keyed(token, &[b"reply", question.as_bytes()]))
}

/// What a sealed text is for.
const CODE: &[u8] = b"code";
const QUESTION: &[u8] = b"question";

fn sealed(kind: &[u8], token: &str, origin: &str, nonce: &str, now_ms: u64) -> String {
    let seal = keyed(token, &[kind, origin.as_bytes(), nonce.as_bytes(), &now_ms.to_be_bytes()]);
    format!("{nonce}.{now_ms}.{}", digits(&seal))
}

/// A sign-in, as its file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SignIn {
    cookie: String,
    secret: String,
    until_ms: u64,
}

impl SignIn {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (cookie, secret) = (words.next()?.to_owned(), words.next()?.to_owned());
        Some(Self { cookie, secret, until_ms: words.next()?.parse().ok()? })
    }
}

#[derive(Default)]
struct State {
    sign_ins: Vec<SignIn>,
    /// Random parts of used codes, with the time from which they are too old in any case.
    used: BTreeMap<String, u64>,
}

/// Why nobody was signed in.
#[derive(Debug)]
pub enum Refused {
    /// The code is wrong, of another address, too old or used.
    Code,
    /// The sign-in cannot be kept.
    Store(io::Error),
}

/// The sign-ins to one server.
pub struct SignIns {
    token: String,
    file: Option<PathBuf>,
    started_ms: u64,
    state: Mutex<State>,
}

impl SignIns {
    /// Keeps sign-ins in a file, or only in memory. They end with the token.
    #[must_use]
    pub fn new(token: &str, file: Option<PathBuf>, now_ms: u64) -> Self {
        Self { token: token.to_owned(), file, started_ms: now_ms, state: Mutex::default() }
    }

    /// Signs a browser in whose page is at `origin`: a code is exchanged for the two random texts.
    ///
    /// # Errors
    /// If the code is no good, or the sign-in cannot be kept.
    pub fn exchange(&self, sent: &str, origin: &str, now_ms: u64, pair: (&str, &str)) -> Result<(), Refused> {
        let (nonce, made_ms) = self.unseal(CODE, sent, origin, now_ms).ok_or(Refused::Code)?;
        // Codes that were used before this server started are not known here.
        if made_ms < self.started_ms {
            return Err(Refused::Code);
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.used.retain(|_, until| *until > now_ms);
        if state.used.len() >= USED_MAX || state.used.insert(nonce.to_owned(), made_ms + CODE_MS).is_some() {
            return Err(Refused::Code);
        }
        let mut sign_ins = self.load(&state);
        sign_ins.retain(|sign_in| sign_in.until_ms > now_ms);
        let surplus = (sign_ins.len() + 1).saturating_sub(SIGN_INS_MAX);
        sign_ins.drain(..surplus);
        let (cookie, secret) = self.digests(pair);
        sign_ins.push(SignIn { cookie, secret, until_ms: now_ms + SIGN_IN_SECONDS * 1000 });
        self.keep(&mut state, sign_ins).map_err(Refused::Store)
    }

    /// Replies to a question to the server at `origin`; `None` if nobody asks it who has the token. So nobody else gets a
    /// text to try guesses of the token on.
    #[must_use]
    pub fn reply(&self, question: &str, origin: &str, now_ms: u64) -> Option<String> {
        self.unseal(QUESTION, question, origin, now_ms)?;
        Some(reply(&self.token, question))
    }

    /// Random part and time of a sealed text; `None` if it is wrong, of another address or too old.
    fn unseal<'a>(&self, kind: &[u8], sent: &'a str, origin: &str, now_ms: u64) -> Option<(&'a str, u64)> {
        let (nonce, made) = sent.split_once('.')?;
        let made_ms: u64 = made.split_once('.')?.0.parse().ok()?;
        let is_young = made_ms <= now_ms && now_ms - made_ms < CODE_MS;
        let is_right = || is_same(sent, &sealed(kind, &self.token, origin, nonce, made_ms));
        (is_young && nonce.len() == NONCE_DIGITS && is_right()).then_some((nonce, made_ms))
    }

    /// Returns true if both secrets are of one sign-in that has not ended.
    #[must_use]
    pub fn is_signed_in(&self, pair: (&str, &str), now_ms: u64) -> bool {
        let (cookie, secret) = self.digests(pair);
        let sign_ins = self.load(&self.state.lock().unwrap_or_else(PoisonError::into_inner));
        let is_it = |known: &SignIn| is_same(&known.cookie, &cookie) & is_same(&known.secret, &secret);
        sign_ins.iter().any(|known| is_it(known) && known.until_ms > now_ms)
    }

    /// Ends a sign-in.
    ///
    /// # Errors
    /// If the file cannot be written; then the sign-in goes on.
    pub fn sign_out(&self, pair: (&str, &str)) -> io::Result<()> {
        let (cookie, _) = self.digests(pair);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sign_ins = self.load(&state);
        sign_ins.retain(|known| !is_same(&known.cookie, &cookie));
        self.keep(&mut state, sign_ins)
    }

    fn digests(&self, (cookie, secret): (&str, &str)) -> (String, String) {
        let digest = |kind: &[u8], text: &str| digits(&keyed(&self.token, &[kind, text.as_bytes()]));
        (digest(b"cookie", cookie), digest(b"secret", secret))
    }

    fn load(&self, state: &State) -> Vec<SignIn> {
        match &self.file {
            // A file that is gone or cannot be read signs nobody in.
            Some(file) => fs::read_to_string(file).unwrap_or_default().lines().filter_map(SignIn::read).collect(),
            None => state.sign_ins.clone(),
        }
    }

    fn keep(&self, state: &mut State, sign_ins: Vec<SignIn>) -> io::Result<()> {
        let Some(file) = &self.file else {
            state.sign_ins = sign_ins;
            return Ok(());
        };
        let line = |SignIn { cookie, secret, until_ms }: &SignIn| format!("{cookie} {secret} {until_ms}\n");
        let text: String = sign_ins.iter().map(line).collect();
        let new = file.with_extension("new");
        let mut made = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        made.write_all(text.as_bytes())?;
        made.sync_all()?;
        fs::rename(new, file)
    }
}

impl std::fmt::Debug for SignIns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SignIns([redacted])")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "the token of a test";
    const ORIGIN: &str = "http://127.0.0.1:7670";
    const NONCE: &str = "0123456789abcdef0123456789abcdef";
    const PAIR: (&str, &str) = ("a cookie", "a secret");

    fn refused(sign_ins: &SignIns, code: &str, origin: &str, now_ms: u64) -> bool {
        matches!(sign_ins.exchange(code, origin, now_ms, PAIR), Err(Refused::Code))
    }

    #[test]
    fn a_code_works_once_for_a_minute_at_its_address() {
        let sign_ins = SignIns::new(TOKEN, None, 1000);
        let good = code(TOKEN, ORIGIN, NONCE, 2000);
        assert!(refused(&sign_ins, &good, "http://127.0.0.1:7671", 2000), "another port is another server");
        assert!(refused(&sign_ins, &good, ORIGIN, 1999), "from the future");
        assert!(refused(&sign_ins, &good, ORIGIN, 2000 + CODE_MS), "too old");
        assert!(refused(&sign_ins, &code("another token", ORIGIN, NONCE, 2000), ORIGIN, 2000));
        assert!(refused(&sign_ins, &code(TOKEN, ORIGIN, NONCE, 999), ORIGIN, 2000), "before this server");
        assert!(refused(&sign_ins, &code(TOKEN, ORIGIN, "short", 2000), ORIGIN, 2000));
        for wrong in ["", ".", "..", "a.b.c", &good[1..], &good.replace(".2000.", ".2001.")] {
            assert!(refused(&sign_ins, wrong, ORIGIN, 2500), "{wrong}");
        }
        assert!(!sign_ins.is_signed_in(PAIR, 2500));
        sign_ins.exchange(&good, ORIGIN, 2500, PAIR).unwrap();
        assert!(refused(&sign_ins, &good, ORIGIN, 2501), "used");
        assert!(sign_ins.is_signed_in(PAIR, 2501));
    }

    #[test]
    fn a_question_proves_the_token_to_both_sides_at_their_address_and_signs_nobody_in() {
        let sign_ins = SignIns::new(TOKEN, None, 1000);
        let asked = question(TOKEN, ORIGIN, NONCE, 500);
        assert_eq!(sign_ins.reply(&asked, ORIGIN, 2000), Some(reply(TOKEN, &asked)));
        assert_ne!(reply("another token", &asked), reply(TOKEN, &asked));
        assert_ne!(reply(TOKEN, &asked), reply(TOKEN, &question(TOKEN, ORIGIN, NONCE, 501)));
        let by_another = question("another token", ORIGIN, NONCE, 500);
        for (sent, origin, now_ms) in [
            (by_another.as_str(), ORIGIN, 2000),
            // What listens elsewhere cannot have it answered by the server that is meant.
            (&asked, "http://127.0.0.1:7671", 2000),
            (&asked, ORIGIN, 499),
            (&asked, ORIGIN, 500 + CODE_MS),
            (&code(TOKEN, ORIGIN, NONCE, 500), ORIGIN, 2000),
            ("", ORIGIN, 2000),
        ] {
            assert_eq!(sign_ins.reply(sent, origin, now_ms), None, "{sent} {origin} {now_ms}");
        }
        assert!(refused(&sign_ins, &question(TOKEN, ORIGIN, NONCE, 1500), ORIGIN, 2000));
    }

    #[test]
    fn both_secrets_are_needed_until_the_sign_in_ends() {
        let sign_ins = SignIns::new(TOKEN, None, 0);
        sign_ins.exchange(&code(TOKEN, ORIGIN, NONCE, 0), ORIGIN, 0, PAIR).unwrap();
        let other = ("another cookie", "another secret");
        sign_ins.exchange(&code(TOKEN, ORIGIN, &NONCE.replace('0', "1"), 0), ORIGIN, 0, other).unwrap();
        for wrong in [("", ""), (PAIR.0, ""), ("", PAIR.1), (PAIR.1, PAIR.0), (PAIR.0, other.1), (other.0, PAIR.1)] {
            assert!(!sign_ins.is_signed_in(wrong, 1), "{wrong:?}");
        }
        assert!(sign_ins.is_signed_in(PAIR, SIGN_IN_SECONDS * 1000 - 1));
        assert!(!sign_ins.is_signed_in(PAIR, SIGN_IN_SECONDS * 1000), "expired");
        sign_ins.sign_out(PAIR).unwrap();
        assert_eq!((sign_ins.is_signed_in(PAIR, 1), sign_ins.is_signed_in(other, 1)), (false, true));
    }

    #[test]
    fn a_file_outlives_the_server_holds_no_secret_and_ends_with_the_token() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("console-sign-ins");
        let sign_ins = |token| SignIns::new(token, Some(file.clone()), 0);
        sign_ins(TOKEN).exchange(&code(TOKEN, ORIGIN, NONCE, 0), ORIGIN, 0, PAIR).unwrap();
        assert!(sign_ins(TOKEN).is_signed_in(PAIR, 1), "another server of the same folder");
        assert!(!sign_ins("a new token").is_signed_in(PAIR, 1));
        let text = fs::read_to_string(&file).unwrap();
        assert!(!text.contains(PAIR.0) && !text.contains(PAIR.1) && !text.contains(NONCE));
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&file).unwrap()) & 0o777;
        assert_eq!((mode, fs::read_dir(dir.path()).unwrap().count()), (0o600, 1));
        let kept = sign_ins(TOKEN);
        fs::remove_file(&file).unwrap();
        assert!(!kept.is_signed_in(PAIR, 1), "whoever deletes the file signs all out");
    }

    #[test]
    fn the_oldest_sign_in_gives_way() {
        let sign_ins = SignIns::new(TOKEN, None, 0);
        for number in 0..=SIGN_INS_MAX {
            let (nonce, cookie) = (format!("{number:032x}"), format!("cookie {number}"));
            sign_ins.exchange(&code(TOKEN, ORIGIN, &nonce, 0), ORIGIN, 0, (&cookie, "secret")).unwrap();
        }
        assert!(!sign_ins.is_signed_in(("cookie 0", "secret"), 1));
        assert!(sign_ins.is_signed_in(("cookie 1", "secret"), 1));
        assert!(sign_ins.is_signed_in((&format!("cookie {SIGN_INS_MAX}"), "secret"), 1));
    }
}
