//! Images and files: those of prompts, and the images that calls return. Their bytes are in blobs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Image of a prompt, or that a call returned. Its bytes are in a blob of the session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Image {
    /// Its type: `image/png`, `image/jpeg`, `image/gif` or `image/webp`.
    pub media_type: String,
    /// The blob's hash, by which it is read.
    pub blob: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
}

/// Image or file of a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Attached {
    /// An image.
    Image(Image),
    /// A text file or a PDF.
    File(AttachedFile),
}

/// Bytes of a text file that a model is sent; it is told how many are left out.
pub const FILE_TEXT_BYTES_MAX: u64 = 64 * 1024;

/// File of a prompt. Its bytes are in a blob of the session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AttachedFile {
    /// Its name, without a path.
    pub name: String,
    /// Its type, such as `text/plain` or `application/pdf`.
    pub media_type: String,
    /// The blob's hash, by which it is read.
    pub blob: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Pages of a PDF that shows how many it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<u32>,
}

/// The type of the files that a model is sent whole. All others are texts.
pub const PDF: &str = "application/pdf";

impl AttachedFile {
    /// Returns true for a PDF.
    #[must_use]
    pub fn is_pdf(&self) -> bool {
        self.media_type == PDF
    }
}

impl Attached {
    /// The name of its blob.
    #[must_use]
    pub const fn blob(&self) -> &String {
        match self {
            Self::Image(image) => &image.blob,
            Self::File(file) => &file.blob,
        }
    }

    /// Sets the name of its blob.
    #[must_use]
    pub fn stored_as(self, blob: String) -> Self {
        match self {
            Self::Image(image) => Self::Image(Image { blob, ..image }),
            Self::File(file) => Self::File(AttachedFile { blob, ..file }),
        }
    }

    /// Returns what a model may be sent whole; `None` for a text file.
    #[must_use]
    pub fn shown(&self) -> Option<Shown<'_>> {
        match self {
            Self::Image(image) => Some(Shown::of(image)),
            Self::File(file) if file.is_pdf() => {
                let AttachedFile { media_type, blob, bytes, pages, .. } = file;
                Some(Shown { media_type, blob, bytes: *bytes, pages: *pages })
            }
            Self::File(_) => None,
        }
    }

    /// Describes each in a line, with its number among its kind.
    #[must_use]
    pub fn lines(blocks: &[Self]) -> Vec<String> {
        let (mut images, mut files) = (0, 0);
        let line = |block: &Self| match block {
            Self::Image(Image { media_type, bytes, width, height, .. }) => {
                images += 1;
                format!("[Image {images}: {media_type}, {width} x {height} pixels, {bytes} bytes]")
            }
            Self::File(AttachedFile { name, media_type, bytes, .. }) => {
                files += 1;
                format!("[File {files}: {name}, {media_type}, {bytes} bytes]")
            }
        };
        blocks.iter().map(line).collect()
    }
}

/// Image or PDF that a model may be sent whole.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// Its type.
    pub media_type: &'a str,
    /// The name of its blob.
    pub blob: &'a str,
    /// Its length in bytes.
    pub bytes: u64,
    /// Pages of a PDF that shows how many it has.
    pub pages: Option<u32>,
}

impl<'a> Shown<'a> {
    pub(super) fn of(image: &'a Image) -> Self {
        Self { media_type: &image.media_type, blob: &image.blob, bytes: image.bytes, pages: None }
    }

    /// Returns true for a PDF.
    #[must_use]
    pub fn is_pdf(&self) -> bool {
        self.media_type == PDF
    }
}
