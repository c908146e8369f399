//! Lines of a program's standard input, for surfaces whose messages are lines.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

/// A line of the input.
pub enum Line {
    /// Without its end.
    Whole(Vec<u8>),
    /// Longer than the limit.
    TooLong,
}

/// Reads the next line that is not blank; `None` at the end. The last line needs no end. If this is dropped, what was
/// read of a line is lost.
///
/// # Errors
/// If reading fails.
pub async fn read_line(reader: &mut (impl AsyncBufRead + Unpin), limit: usize) -> io::Result<Option<Line>> {
    let (mut line, mut is_long) = (Vec::new(), false);
    loop {
        let taken = (&mut *reader).take(limit as u64 + 1).read_until(b'\n', &mut line).await?;
        let has_end = line.pop_if(|byte| *byte == b'\n').is_some();
        is_long |= line.len() > limit;
        match (has_end || taken == 0, is_long) {
            (true, true) => return Ok(Some(Line::TooLong)),
            (true, false) if !line.trim_ascii().is_empty() => return Ok(Some(Line::Whole(line))),
            (true, false) if taken == 0 => return Ok(None),
            (true, false) | (false, true) => line.clear(),
            (false, false) => {}
        }
    }
}
