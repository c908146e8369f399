//! From the blocks of a prompt to blobs of the session. All of them are checked before the first is stored, and they are
//! stored before the event that names them.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use futures::future::try_join_all;
use sha2::{Digest as _, Sha256};

use super::{Ports, actor::Actor};
use crate::{
    SessionError,
    ids::SessionId,
    model::ResolvedModel,
    prompt::{self, FILE_BYTES_MAX},
    redact::StreamRedactor,
    service::{Prompt, PromptBlock},
    session::message::{Attached, AttachedFile, Body, PDF},
    store::{StoreError, hex},
    tool::is_copy,
    uploads,
};

/// Bytes of a text to read at once.
const PIECE_BYTES: usize = 1024 * 1024;

/// Image or file that is checked. Its blob has no name before it is stored.
pub(super) struct Checked {
    pub(super) attached: Attached,
    content: Content,
}

/// What is to be stored.
enum Content {
    /// These bytes.
    New(Bytes),
    /// Nothing: it is a blob of the session, or an upload.
    Named,
    /// The text of such a blob without its secrets.
    Unclean(String),
}

/// Text of a blob or an upload of any length, read in pieces without their secrets.
struct Text<'a> {
    named: &'a Named,
    blob: &'a str,
    redactor: StreamRedactor,
    read: u64,
    /// Beginning of a character whose rest is in the next piece.
    cut: Vec<u8>,
    is_over: bool,
}

impl<'a> Text<'a> {
    fn of(named: &'a Named, blob: &'a str) -> Self {
        let redactor = named.ports.secrets.stream();
        Self { named, blob, redactor, read: 0, cut: Vec::new(), is_over: false }
    }

    /// Returns the next piece; `None` at the end, and the error `wrong` if it is not a text.
    async fn next(&mut self, wrong: impl Fn() -> SessionError) -> Result<Option<String>, SessionError> {
        if self.is_over {
            return Ok(None);
        }
        let piece = self.named.piece(self.blob, self.read, PIECE_BYTES).await?;
        self.read += piece.len() as u64;
        if piece.is_empty() {
            self.is_over = true;
            return if self.cut.is_empty() { Ok(Some(self.redactor.finish())) } else { Err(wrong()) };
        }
        let mut bytes = std::mem::take(&mut self.cut);
        bytes.extend_from_slice(&piece);
        let valid = match std::str::from_utf8(&bytes) {
            Ok(text) => text,
            Err(error) if error.error_len().is_none() => {
                let (valid, cut) = bytes.split_at(error.valid_up_to());
                self.cut = cut.to_vec();
                std::str::from_utf8(valid).unwrap_or_default()
            }
            Err(_) => return Err(wrong()),
        };
        if valid.contains('\0') { Err(wrong()) } else { Ok(Some(self.redactor.push(valid).into_owned())) }
    }
}

/// Text of a blob that is checked.
struct CheckedText {
    /// Its bytes, with its secrets.
    read: u64,
    /// Its bytes without them.
    bytes: u64,
    /// Whether it has none.
    is_clean: bool,
}

impl Actor {
    /// Returns a prompt's text without secrets.
    pub(super) fn clean_text(&self, text: &str) -> Body {
        Body::Inline(self.ports.secrets.replace(text).into_owned())
    }

    /// Checks a prompt's images and files, those of blobs too. A model that is gone fails the turn itself.
    pub(super) async fn check_blocks(
        &mut self,
        prompt: &Prompt,
        model: Option<&ResolvedModel>,
    ) -> Result<Vec<Checked>, SessionError> {
        model.map_or(Ok(()), |model| prompt::check_model(prompt, model))?;
        let (named, mut checked, mut bytes) = (self.named(), Vec::new(), 0);
        let (mut texts, mut text_bytes) = (BTreeMap::new(), 0);
        for (at, block) in prompt.blocks().iter().enumerate() {
            let (data, blob) = match block {
                PromptBlock::Text { .. } => continue,
                PromptBlock::Image { data, blob, .. } | PromptBlock::File { data, blob, .. } => (data, blob),
            };
            let content = match (data, blob, block) {
                (None, Some(blob), PromptBlock::File { name, media_type, .. }) if media_type != PDF => {
                    if !texts.contains_key(blob) {
                        let text = named.check_text(at, blob, text_bytes).await?;
                        text_bytes += text.read;
                        texts.insert(blob, text);
                    }
                    checked.extend(texts.get(blob).map(|text| self.named_text((name, media_type), blob, text)));
                    continue;
                }
                (None, Some(blob), _) => named.piece(blob, 0, FILE_BYTES_MAX + 1).await?,
                (data, ..) => data.as_ref().map_or_else(Bytes::new, |data| data.0.clone()),
            };
            bytes += content.len() as u64;
            prompt::check_bytes(bytes)?;
            if blob.is_some() {
                // What the request itself has is checked.
                prompt::check_content((at, "blob"), block, &content)?;
            }
            let attached = prompt::attached(block, &content);
            checked.extend(attached.map(|attached| self.cleaned(attached, content, blob.clone())));
        }
        Ok(checked)
    }

    /// Returns a text file whose text is that of a blob.
    fn named_text(&self, (name, media_type): (&str, &str), blob: &str, text: &CheckedText) -> Checked {
        let name = self.ports.secrets.replace(name).into_owned();
        let (media_type, bytes) = (media_type.to_owned(), text.bytes);
        let stored_as = if text.is_clean { blob.to_owned() } else { String::new() };
        let attached = Attached::File(AttachedFile { name, media_type, blob: stored_as, bytes, pages: None });
        Checked { attached, content: if text.is_clean { Content::Named } else { Content::Unclean(blob.to_owned()) } }
    }

    /// Replaces secrets in a file's name, and in a text that the request itself has.
    fn cleaned(&self, attached: Attached, mut content: Bytes, blob: Option<String>) -> Checked {
        let attached = match attached {
            Attached::Image(_) => attached,
            Attached::File(file) => {
                let text = std::str::from_utf8(&content).ok().filter(|_| !file.is_pdf());
                if let Some(Cow::Owned(text)) = text.map(|text| self.ports.secrets.replace(text)) {
                    content = text.into();
                }
                let name = self.ports.secrets.replace(&file.name).into_owned();
                Attached::File(AttachedFile { name, bytes: content.len() as u64, ..file })
            }
        };
        match blob {
            Some(blob) => Checked { attached: attached.stored_as(blob), content: Content::Named },
            None => Checked { attached, content: Content::New(content) },
        }
    }

    /// Stores images and files. They are durable with the event that names them. If one cannot be stored, nothing of the
    /// session has changed, and a turn that runs goes on.
    pub(super) async fn attach(&mut self, checked: Vec<Checked>) -> Result<Vec<Attached>, SessionError> {
        let stored = self.named().store_all(checked).await;
        stored.map_err(|trouble| match trouble {
            Trouble::Store(error @ StoreError::Fenced) => self.discard(&error),
            Trouble::Store(error) => Self::store_failed(&error),
            Trouble::Refused(refusal) => refusal,
        })
    }

    fn named(&self) -> Named {
        Named { ports: self.ports.clone(), id: self.session.id }
    }
}

/// Blobs and uploads of a session, which prompts may name.
struct Named {
    ports: Arc<Ports>,
    id: SessionId,
}

impl Named {
    /// Reads a piece. Copies of files are not for prompts.
    async fn piece(&self, blob: &str, offset: u64, limit: usize) -> Result<Bytes, SessionError> {
        match offset == 0 && is_copy(self.ports.blobs.as_ref(), self.id, blob).await? {
            true => Err(gone()),
            false => uploads::read(&self.ports, self.id, blob, offset, limit).await,
        }
    }

    /// Checks a text file, beside others of so many bytes.
    async fn check_text(&self, at: usize, blob: &str, others: u64) -> Result<CheckedText, SessionError> {
        let (mut text, mut bytes, mut hash) = (Text::of(self, blob), 0, Sha256::new());
        while let Some(piece) = text.next(|| prompt::not_text(at, "blob")).await? {
            prompt::check_text_bytes(others + text.read)?;
            bytes += piece.len() as u64;
            hash.update(&piece);
        }
        Ok(CheckedText { read: text.read, bytes, is_clean: hex(&hash.finalize()) == blob })
    }

    async fn store_all(&self, checked: Vec<Checked>) -> Result<Vec<Attached>, Trouble> {
        let mut cleaned = BTreeMap::new();
        for Checked { content, .. } in &checked {
            if let Content::Unclean(blob) = content
                && !cleaned.contains_key(blob)
            {
                cleaned.insert(blob.clone(), self.store_clean(blob).await?);
            }
        }
        try_join_all(checked.into_iter().map(|checked| self.store(checked, &cleaned))).await
    }

    async fn store(
        &self,
        Checked { attached, content }: Checked,
        cleaned: &BTreeMap<String, String>,
    ) -> Result<Attached, Trouble> {
        let (blobs, id) = (&self.ports.blobs, self.id);
        match content {
            Content::Named if blobs.keep(id, attached.blob(), uploads::since(&self.ports)).await? => Ok(attached),
            Content::Named => Err(gone().into()),
            Content::Unclean(blob) => Ok(attached.stored_as(cleaned.get(&blob).cloned().unwrap_or_default())),
            Content::New(content) => {
                let mut writer = blobs.writer(id);
                writer.waits_for_room();
                writer.write(&content).await?;
                let (blob, _) = writer.finish().await?;
                Ok(attached.stored_as(blob))
            }
        }
    }

    /// Stores the text of a blob without its secrets; returns the name of that.
    async fn store_clean(&self, blob: &str) -> Result<String, Trouble> {
        let mut writer = self.ports.blobs.writer(self.id);
        writer.waits_for_room();
        let mut text = Text::of(self, blob);
        while let Some(piece) = text.next(gone).await? {
            writer.write(piece.as_bytes()).await?;
        }
        Ok(writer.finish().await?.0)
    }
}

const fn gone() -> SessionError {
    SessionError::ItemNotFound("blob")
}

/// Reason that an image or a file was not stored.
enum Trouble {
    Store(StoreError),
    Refused(SessionError),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<SessionError> for Trouble {
    fn from(error: SessionError) -> Self {
        Self::Refused(error)
    }
}
