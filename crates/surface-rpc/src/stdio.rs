//! Newline-delimited messages: one on a line, and one answer on a line.

use std::{io, sync::Arc, time::Duration};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use futures::StreamExt as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::codec::{Decoder, Encoder, FramedRead, FramedWrite};

use crate::{
    connection::{self, Inward, Transport},
    error::too_large,
    handlers::Rpc,
    wire::Outward,
};

/// A pipe has no ping: the client is there until the pipe is closed.
const NO_SILENCE: Duration = Duration::MAX;

pub(crate) async fn serve(
    rpc: Arc<Rpc>,
    reader: impl AsyncRead + Send + Unpin,
    writer: impl AsyncWrite + Send + Unpin + 'static,
    search_path: Option<String>,
) -> io::Result<()> {
    let written = Arc::default();
    let writer = connection::counted(writer, &written);
    let inlet = FramedRead::new(reader, Lines { max: rpc.options.message_bytes, ..Lines::default() });
    let outlet = FramedWrite::new(writer, Lines::default());
    let transport = Transport { inlet: inlet.fuse(), outlet, written, silence: NO_SILENCE, search_path };
    connection::serve(rpc, transport).await
}

/// Lines of bounded length. A longer one is refused once and dropped to its end, and the next one is read.
#[derive(Default)]
struct Lines {
    max: usize,
    /// Bytes of the buffer without a line's end.
    searched: usize,
    is_dropping: bool,
}

impl Lines {
    /// Takes a line off the buffer, if its end is there.
    fn take(&mut self, buffer: &mut BytesMut) -> Option<Bytes> {
        let found = buffer[self.searched..].iter().position(|byte| *byte == b'\n');
        let Some(end) = found.map(|at| at + self.searched) else {
            self.searched = buffer.len();
            return None;
        };
        self.searched = 0;
        let line = buffer.split_to(end).freeze();
        buffer.advance(1);
        Some(line)
    }

    fn inward(&mut self, line: Bytes) -> Option<Inward> {
        if std::mem::take(&mut self.is_dropping) {
            return None;
        }
        if line.len() > self.max {
            return Some(Inward::Refused(too_large(self.max).into()));
        }
        // An empty line is no message.
        (!line.trim_ascii().is_empty()).then_some(Inward::Message(line))
    }
}

impl Decoder for Lines {
    type Item = Inward;
    type Error = io::Error;

    fn decode(&mut self, buffer: &mut BytesMut) -> io::Result<Option<Inward>> {
        while let Some(line) = self.take(buffer) {
            if let Some(inward) = self.inward(line) {
                return Ok(Some(inward));
            }
        }
        if buffer.len() <= self.max {
            return Ok(None);
        }
        buffer.clear();
        self.searched = 0;
        let is_known = std::mem::replace(&mut self.is_dropping, true);
        Ok((!is_known).then(|| Inward::Refused(too_large(self.max).into())))
    }

    /// The last line needs no end.
    fn decode_eof(&mut self, buffer: &mut BytesMut) -> io::Result<Option<Inward>> {
        if let Some(inward) = self.decode(buffer)? {
            return Ok(Some(inward));
        }
        let rest = buffer.split().freeze();
        self.searched = 0;
        Ok(self.inward(rest))
    }
}

impl Encoder<Outward> for Lines {
    type Error = io::Error;

    fn encode(&mut self, message: Outward, out: &mut BytesMut) -> io::Result<()> {
        out.put(message.into_bytes());
        out.put_u8(b'\n');
        Ok(())
    }
}
