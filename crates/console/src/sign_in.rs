//! Sign-ins of browsers. A browser trades a one-time code, which is made from the token, for a cookie that no script can
//! read and a secret that the page sends in a header. Both are needed: browsers send a cookie to every port of a host, and
//! another user of the machine may listen at one.
//!
//! The command that shows a page asks first who serves it: a question and its reply prove the same token to both sides, and
//! reveal it to neither. Sign-ins are kept in memory, so they end with the process.

use std::{
    collections::BTreeMap,
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

pub(crate) fn digits(bytes: &[u8]) -> String {
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

/// Makes a question to what listens at `origin`. It signs no browser in; only a server with the same token can [`reply`].
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

/// Browser that has signed in.
struct SignIn {
    cookie: String,
    secret: String,
    until_ms: u64,
}

#[derive(Default)]
struct State {
    sign_ins: Vec<SignIn>,
    /// Random parts of used codes, with the time from which they are too old in any case.
    used: BTreeMap<String, u64>,
}

/// The sign-ins to one server.
pub struct SignIns {
    token: String,
    started_ms: u64,
    state: Mutex<State>,
}

impl SignIns {
    /// Makes the sign-ins of a server with this token.
    #[must_use]
    pub fn new(token: &str, now_ms: u64) -> Self {
        Self { token: token.to_owned(), started_ms: now_ms, state: Mutex::default() }
    }

    /// Signs a browser in whose page is at `origin`: a code is exchanged for the two random texts. Returns false if the code
    /// is wrong, of another address, too old or used.
    #[must_use]
    pub fn exchange(&self, sent: &str, origin: &str, now_ms: u64, (cookie, secret): (&str, &str)) -> bool {
        let Some((nonce, made_ms)) = self.unseal(CODE, sent, origin, now_ms) else { return false };
        // Codes that were used before this server started are not known here.
        if made_ms < self.started_ms {
            return false;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.used.retain(|_, until| *until > now_ms);
        if state.used.len() >= USED_MAX || state.used.insert(nonce.to_owned(), made_ms + CODE_MS).is_some() {
            return false;
        }
        state.sign_ins.retain(|sign_in| sign_in.until_ms > now_ms);
        let surplus = (state.sign_ins.len() + 1).saturating_sub(SIGN_INS_MAX);
        state.sign_ins.drain(..surplus);
        let until_ms = now_ms + SIGN_IN_SECONDS * 1000;
        state.sign_ins.push(SignIn { cookie: cookie.to_owned(), secret: secret.to_owned(), until_ms });
        true
    }

    /// Replies to a question to the server at `origin`; `None` if the asking program does not have
    /// the token, so that it gets no text to try guesses of the token on.
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
    pub fn is_signed_in(&self, (cookie, secret): (&str, &str), now_ms: u64) -> bool {
        let is_it = |known: &SignIn| is_same(&known.cookie, cookie) & is_same(&known.secret, secret);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.sign_ins.iter().any(|known| is_it(known) && known.until_ms > now_ms)
    }

    /// Ends the sign-in that has this cookie.
    pub fn sign_out(&self, cookie: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.sign_ins.retain(|known| !is_same(&known.cookie, cookie));
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
        !sign_ins.exchange(code, origin, now_ms, PAIR)
    }

    #[test]
    fn a_code_works_once_for_a_minute_at_its_address() {
        let sign_ins = SignIns::new(TOKEN, 1000);
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
        assert!(sign_ins.exchange(&good, ORIGIN, 2500, PAIR));
        assert!(refused(&sign_ins, &good, ORIGIN, 2501), "used");
        assert!(sign_ins.is_signed_in(PAIR, 2501));
    }

    #[test]
    fn a_question_proves_the_token_to_both_sides_at_their_address_and_signs_nobody_in() {
        let sign_ins = SignIns::new(TOKEN, 1000);
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
        let sign_ins = SignIns::new(TOKEN, 0);
        assert!(sign_ins.exchange(&code(TOKEN, ORIGIN, NONCE, 0), ORIGIN, 0, PAIR));
        let other = ("another cookie", "another secret");
        assert!(sign_ins.exchange(&code(TOKEN, ORIGIN, &NONCE.replace('0', "1"), 0), ORIGIN, 0, other));
        for wrong in [("", ""), (PAIR.0, ""), ("", PAIR.1), (PAIR.1, PAIR.0), (PAIR.0, other.1), (other.0, PAIR.1)] {
            assert!(!sign_ins.is_signed_in(wrong, 1), "{wrong:?}");
        }
        assert!(sign_ins.is_signed_in(PAIR, SIGN_IN_SECONDS * 1000 - 1));
        assert!(!sign_ins.is_signed_in(PAIR, SIGN_IN_SECONDS * 1000), "expired");
        sign_ins.sign_out(PAIR.0);
        assert_eq!((sign_ins.is_signed_in(PAIR, 1), sign_ins.is_signed_in(other, 1)), (false, true));
    }

    #[test]
    fn the_oldest_sign_in_gives_way() {
        let sign_ins = SignIns::new(TOKEN, 0);
        for number in 0..=SIGN_INS_MAX {
            let (nonce, cookie) = (format!("{number:032x}"), format!("cookie {number}"));
            assert!(sign_ins.exchange(&code(TOKEN, ORIGIN, &nonce, 0), ORIGIN, 0, (&cookie, "secret")));
        }
        assert!(!sign_ins.is_signed_in(("cookie 0", "secret"), 1));
        assert!(sign_ins.is_signed_in(("cookie 1", "secret"), 1));
        assert!(sign_ins.is_signed_in((&format!("cookie {SIGN_INS_MAX}"), "secret"), 1));
    }
}
