//! From the blocks of a prompt to blobs of the session. All of them are checked before the first is stored, and they are
//! stored before the event that names them.

use std::borrow::Cow;

use bytes::Bytes;
use futures::future::try_join_all;

use super::actor::Actor;
use crate::{
    SessionError,
    model::ResolvedModel,
    prompt::{self, FILE_BYTES_MAX},
    service::{Prompt, PromptBlock},
    session::message::{Attached, AttachedFile, Body},
    store::StoreError,
};

/// Image or file that is checked. Its blob has no name before it is stored.
pub(super) struct Checked {
    pub(super) attached: Attached,
    /// What is to be stored; `None` if it is the content of a blob that the session has.
    content: Option<Bytes>,
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
        let (mut checked, mut bytes) = (Vec::new(), 0);
        for (at, block) in prompt.blocks().iter().enumerate() {
            let (content, blob) = match block {
                PromptBlock::Text { .. } => continue,
                PromptBlock::Image { data, blob, .. } | PromptBlock::File { data, blob, .. } => match (data, blob) {
                    (Some(data), _) => (data.0.clone(), None),
                    (None, blob) => (self.content(blob.as_deref().unwrap_or_default()).await?, blob.clone()),
                },
            };
            bytes += content.len() as u64;
            prompt::check_bytes(bytes)?;
            if blob.is_some() {
                // What the request itself has is checked.
                prompt::check_content(at, block, &content)?;
            }
            checked.extend(prompt::attached(block, &content).map(|attached| self.cleaned(attached, content, blob)));
        }
        Ok(checked)
    }

    /// Reads a blob that a prompt names.
    async fn content(&mut self, blob: &str) -> Result<Bytes, SessionError> {
        let content = self.ports.blobs.read(self.session.id, blob, 0, FILE_BYTES_MAX + 1).await?;
        content.ok_or(SessionError::ItemNotFound("blob"))
    }

    /// Replaces secrets in a file's name, and in a text.
    fn cleaned(&self, attached: Attached, mut content: Bytes, mut blob: Option<String>) -> Checked {
        let attached = match attached {
            Attached::Image(_) => attached,
            Attached::File(file) => {
                let text = std::str::from_utf8(&content).ok().filter(|_| !file.is_pdf());
                if let Some(Cow::Owned(text)) = text.map(|text| self.ports.secrets.replace(text)) {
                    (content, blob) = (text.into(), None);
                }
                let name = self.ports.secrets.replace(&file.name).into_owned();
                Attached::File(AttachedFile { name, bytes: content.len() as u64, ..file })
            }
        };
        match blob {
            Some(blob) => Checked { attached: attached.stored_as(blob), content: None },
            None => Checked { attached, content: Some(content) },
        }
    }

    /// Stores images and files. They are durable with the event that names them. If one cannot be stored, nothing of the
    /// session has changed, and a turn that runs goes on.
    pub(super) async fn attach(&mut self, checked: Vec<Checked>) -> Result<Vec<Attached>, SessionError> {
        let (blobs, id) = (&self.ports.blobs, self.session.id);
        let stored = checked.into_iter().map(|Checked { attached, content }| async move {
            let Some(content) = content else { return Ok(attached) };
            let mut writer = blobs.writer(id);
            writer.waits_for_room();
            writer.write(&content).await?;
            let (blob, _) = writer.finish().await?;
            Ok(attached.stored_as(blob))
        });
        try_join_all(stored).await.map_err(|error| match error {
            StoreError::Fenced => self.discard(&error),
            _ => Self::store_failed(&error),
        })
    }
}
