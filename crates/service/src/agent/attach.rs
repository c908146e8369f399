//! From the blocks of a prompt to blobs of the session. All of them are checked before the first is stored, and they are
//! stored before the event that names them.

use bytes::Bytes;

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
    content: Bytes,
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
            let content = match block {
                PromptBlock::Text { .. } => continue,
                PromptBlock::Image { data, blob, .. } | PromptBlock::File { data, blob, .. } => match (data, blob) {
                    (Some(data), _) => data.0.clone(),
                    (None, blob) => self.content(blob.as_deref().unwrap_or_default()).await?,
                },
            };
            bytes += content.len() as u64;
            prompt::check_bytes(bytes)?;
            prompt::check_content(at, block, &content)?;
            checked.extend(prompt::attached(block, &content).map(|attached| self.cleaned(attached, content)));
        }
        Ok(checked)
    }

    /// Reads a blob that a prompt names.
    async fn content(&mut self, blob: &str) -> Result<Bytes, SessionError> {
        let content = self.ports.blobs.read(self.session.id, blob, 0, FILE_BYTES_MAX + 1).await?;
        content.ok_or(SessionError::ItemNotFound("blob"))
    }

    /// Replaces secrets in a file's name, and in a text.
    fn cleaned(&self, attached: Attached, content: Bytes) -> Checked {
        let Attached::File(file) = attached else { return Checked { attached, content } };
        let name = self.ports.secrets.replace(&file.name).into_owned();
        let content = match std::str::from_utf8(&content) {
            Ok(text) if !file.is_pdf() => Bytes::from(self.ports.secrets.replace(text).into_owned()),
            _ => content,
        };
        let bytes = content.len() as u64;
        Checked { attached: Attached::File(AttachedFile { name, bytes, ..file }), content }
    }

    /// Stores images and files. They are durable with the event that names them.
    pub(super) async fn attach(&mut self, checked: Vec<Checked>) -> Result<Vec<Attached>, StoreError> {
        let mut all = Vec::with_capacity(checked.len());
        for Checked { attached, content } in checked {
            let mut writer = self.ports.blobs.writer(self.session.id);
            writer.write(&content).await?;
            let (blob, _) = writer.finish().await?;
            all.push(attached.stored_as(blob));
        }
        Ok(all)
    }
}
