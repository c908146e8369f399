//! One confined command from its start to its end.

use std::{
    io::Read as _,
    net::Shutdown,
    os::unix::net::UnixStream,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use meerkat_service::tool::ToolError;
use tokio::{
    io::AsyncReadExt as _,
    net::unix::pipe,
    process::{Child, Command},
    sync::{mpsc, oneshot},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::place::Place;
use crate::confine::{Guard, Job, Network, hand_over, keeper};

/// Bytes of output that are read at once.
const PIECE_BYTES: usize = 32 * 1024;
/// Pieces of output that wait for the reader.
const PIECES_MAX: usize = 8;
/// Time that a keeper has to end what it started, and to remove its temporary folder, which may be large.
const END_TIME: Duration = Duration::from_secs(60);
/// Bytes of a keeper's error.
const ERROR_BYTES_MAX: usize = 4 * 1024;

/// Running command. Dropping it ends the command with all its processes.
pub(super) struct Run {
    /// Its output as it comes, until the end of its last process.
    pub(super) pieces: mpsc::Receiver<String>,
    /// Ends it when cancelled.
    pub(super) stop: CancellationToken,
    end: oneshot::Receiver<Result<End, ToolError>>,
    _stop_at_drop: DropGuard,
}

/// End of a command.
pub(super) struct End {
    /// Its exit code, or 128 and the number of the signal that ended it.
    pub(super) code: u8,
    /// Changes that a person has to look at.
    pub(super) notes: Vec<String>,
}

impl Run {
    /// Starts a job, in a network if it reaches one of a session. At its end the guard says what changed; a job that writes
    /// nothing needs none. `stop` ends it. It blocks.
    pub(super) fn start(
        place: &Place,
        job: &Job,
        (network, guard): (Option<Arc<Network>>, Option<Guard>),
        stop: CancellationToken,
    ) -> Result<Self, ToolError> {
        let failed = |error: std::io::Error| ToolError::Failed(format!("The command could not be started: {error}"));
        let (control, theirs) = UnixStream::pair().map_err(failed)?;
        let (output, writer) = std::io::pipe().map_err(failed)?;
        let mut command = keeper(theirs.into()).map_err(ToolError::Failed)?;
        command.env_clear().envs(&place.environment).current_dir("/");
        command.envs(job.search_path.iter().map(|path| ("PATH", path)));
        command.stdout(Stdio::from(writer.try_clone().map_err(failed)?)).stderr(Stdio::from(writer));
        let mut command = Command::from(command);
        let child = command.spawn().map_err(failed)?;
        // It holds the other ends.
        drop(command);
        hand_over(&control, job, network.as_deref()).map_err(ToolError::Failed)?;
        control.set_nonblocking(true).map_err(failed)?;
        let output = pipe::Receiver::from_owned_fd(output.into()).map_err(failed)?;
        let (sender, pieces) = mpsc::channel(PIECES_MAX);
        let (end_sender, end) = oneshot::channel();
        let watched = Watched { child, control, output, guard, _network: network };
        let stopped = stop.clone();
        // The caller may be dropped at any await; what has to follow the command's end may not.
        tokio::spawn(async move {
            end_sender.send(watched.until_end(sender, stopped).await).ok();
        });
        Ok(Self { pieces, end, _stop_at_drop: stop.clone().drop_guard(), stop })
    }

    /// Waits for the end, after the last piece.
    pub(super) async fn end(self) -> Result<End, ToolError> {
        self.end.await.unwrap_or(Err(ToolError::Cancelled))
    }
}

struct Watched {
    child: Child,
    control: UnixStream,
    output: pipe::Receiver,
    guard: Option<Guard>,
    /// Network that its session has as long as it runs.
    _network: Option<Arc<Network>>,
}

impl Watched {
    async fn until_end(mut self, pieces: mpsc::Sender<String>, stop: CancellationToken) -> Result<End, ToolError> {
        tokio::select! {
            () = read(&mut self.output, &pieces) => {}
            () = stop.cancelled() => {
                // The keeper ends all processes; then the output ends.
                self.control.shutdown(Shutdown::Both).ok();
                tokio::time::timeout(END_TIME, read(&mut self.output, &pieces)).await.ok();
            }
        }
        drop(pieces);
        let status = match tokio::time::timeout(END_TIME, self.child.wait()).await {
            Ok(status) => status,
            Err(_) => {
                self.control.shutdown(Shutdown::Both).ok();
                self.child.kill().await.ok();
                self.child.wait().await
            }
        };
        let guard = self.guard;
        let notes =
            tokio::task::spawn_blocking(|| guard.map(Guard::changes).unwrap_or_default()).await.unwrap_or_default();
        let mut error = [0; ERROR_BYTES_MAX];
        match self.control.read(&mut error) {
            Ok(bytes) if bytes > 0 => Err(ToolError::Failed(String::from_utf8_lossy(&error[..bytes]).into_owned())),
            Ok(_) | Err(_) => code(status).map(|code| End { code, notes }),
        }
    }
}

fn code(status: std::io::Result<ExitStatus>) -> Result<u8, ToolError> {
    let code = status.ok().and_then(|status| status.code()).and_then(|code| u8::try_from(code).ok());
    code.ok_or_else(|| ToolError::Failed("The command's keeper was killed, and the command with it.".to_owned()))
}

/// Sends the output until its end, whole characters only.
async fn read(output: &mut pipe::Receiver, pieces: &mpsc::Sender<String>) {
    let mut held = Vec::with_capacity(PIECE_BYTES);
    loop {
        let ended = !matches!(output.read_buf(&mut held).await, Ok(1..));
        let piece = take_text(&mut held, ended);
        if !piece.is_empty() {
            // After a drop there is no reader; the command must not wait for one.
            pieces.send(piece).await.ok();
        }
        if ended {
            return;
        }
        held.reserve(PIECE_BYTES.saturating_sub(held.len()));
    }
}

/// Takes text from bytes, with a mark for what is none. A character that is not complete stays, unless it is the end.
fn take_text(held: &mut Vec<u8>, is_end: bool) -> String {
    let complete = if is_end { held.len() } else { held.len() - incomplete(held) };
    let text = String::from_utf8_lossy(&held[..complete]).into_owned();
    held.drain(..complete);
    text
}

/// Counts the bytes at the end that begin a character.
fn incomplete(bytes: &[u8]) -> usize {
    for (behind, byte) in bytes.iter().rev().take(3).enumerate() {
        let length = match byte {
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            0x80..=0xBF => continue,
            _ => return 0,
        };
        return if behind + 1 < length { behind + 1 } else { 0 };
    }
    0
}

/// Adds to an output of which only the end is kept. Returns how many bytes were dropped.
pub(super) fn keep_tail(output: &mut String, piece: &str, bytes_max: usize) -> usize {
    output.push_str(piece);
    let cut = output.ceil_char_boundary(output.len().saturating_sub(bytes_max));
    output.drain(..cut);
    cut
}

/// Says an exit code in a line.
pub(super) fn said(code: u8) -> String {
    let signal = match code.saturating_sub(128) {
        1 => "signal 1, HUP",
        2 => "signal 2, INT",
        3 => "signal 3, QUIT",
        4 => "signal 4, ILL",
        6 => "signal 6, ABRT",
        7 => "signal 7, BUS",
        8 => "signal 8, FPE",
        9 => "signal 9, KILL",
        11 => "signal 11, SEGV",
        13 => "signal 13, PIPE",
        15 => "signal 15, TERM",
        25 => "signal 25, XFSZ",
        31 => "signal 31, SYS",
        _ => return format!("exit code {code}"),
    };
    format!("exit code {code} ({signal})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_two_pieces_share_stay_whole() {
        let bytes = "aß€🦀z".as_bytes();
        for at in 0..=bytes.len() {
            let mut held = bytes[..at].to_vec();
            let mut text = take_text(&mut held, false);
            held.extend(&bytes[at..]);
            text.push_str(&take_text(&mut held, true));
            assert_eq!(text, "aß€🦀z", "cut at {at}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_marked_and_do_not_wait() {
        let mut held = b"a\xFF\x80b\xC0".to_vec();
        assert_eq!(take_text(&mut held, false), "a\u{FFFD}\u{FFFD}b\u{FFFD}");
        assert!(held.is_empty());
    }
}
