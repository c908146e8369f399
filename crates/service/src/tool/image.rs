//! Kinds of images that models take, known by their first bytes. Nothing is decoded.

/// Bytes of an image: vendors allow 5 MiB of base64.
pub const IMAGE_BYTES_MAX: usize = 5 * 1024 * 1024 / 4 * 3;
/// Pixels of a side.
const SIDE_MAX: u32 = 8_000;

/// Kind and size of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Its type, such as `image/png`.
    pub media_type: &'static str,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
}

impl Picture {
    /// Returns the type that these first bytes begin, if it is one.
    #[must_use]
    pub fn media_type(beginning: &[u8]) -> Option<&'static str> {
        match beginning {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n', ..] => Some("image/png"),
            [0xFF, 0xD8, 0xFF, ..] => Some("image/jpeg"),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
            _ => None,
        }
    }

    /// Reads an image's kind and size.
    ///
    /// # Errors
    /// The reason why models do not take it.
    pub fn of(bytes: &[u8]) -> Result<Self, String> {
        let Some(media_type) = Self::media_type(bytes) else {
            return Err("it is not a PNG, JPEG, GIF or WebP image".to_owned());
        };
        if bytes.len() > IMAGE_BYTES_MAX {
            let size = bytes.len();
            return Err(format!("the {media_type} has {size} bytes, and an image may have {IMAGE_BYTES_MAX}"));
        }
        let size = match media_type {
            "image/png" => png(bytes),
            "image/jpeg" => jpeg(bytes),
            "image/gif" => gif(bytes),
            _ => webp(bytes),
        };
        let (width, height) = size.ok_or_else(|| format!("the {media_type} does not say its size, or is cut"))?;
        if !(1..=SIDE_MAX).contains(&width) || !(1..=SIDE_MAX).contains(&height) {
            return Err(format!("the {media_type} is {width} x {height} pixels; a side may have 1 to {SIDE_MAX}"));
        }
        Ok(Self { media_type, width, height })
    }
}

fn part<const BYTES: usize>(bytes: &[u8], at: usize) -> Option<[u8; BYTES]> {
    bytes.get(at..at.checked_add(BYTES)?)?.try_into().ok()
}

fn png(bytes: &[u8]) -> Option<(u32, u32)> {
    let is_header = part(bytes, 12)? == *b"IHDR";
    let side = |at| part(bytes, at).map(u32::from_be_bytes);
    is_header.then_some((side(16)?, side(20)?))
}

fn gif(bytes: &[u8]) -> Option<(u32, u32)> {
    let side = |at| part(bytes, at).map(|side| u32::from(u16::from_le_bytes(side)));
    Some((side(6)?, side(8)?))
}

/// Reads the first frame header, behind the segments before it.
fn jpeg(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut at = 2;
    loop {
        let [mark, kind] = part(bytes, at)?;
        match (mark, kind) {
            // A mark may be padded, and some have no content.
            (0xFF, 0xFF) => at += 1,
            (0xFF, 0x01 | 0xD0..=0xD8) => at += 2,
            (0xFF, 0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF) => {
                let side = |at| part(bytes, at).map(|side| u32::from(u16::from_be_bytes(side)));
                return Some((side(at + 7)?, side(at + 5)?));
            }
            // The image itself, or its end.
            (0xFF, 0xDA | 0xD9) => return None,
            (0xFF, _) => at += 2 + usize::from(u16::from_be_bytes(part(bytes, at + 2)?)),
            _ => return None,
        }
    }
}

fn webp(bytes: &[u8]) -> Option<(u32, u32)> {
    match &part(bytes, 12)? {
        b"VP8 " => {
            let side = |at| part(bytes, at).map(|side| u32::from(u16::from_le_bytes(side)) & 0x3FFF);
            (part(bytes, 23)? == [0x9D, 0x01, 0x2A]).then_some((side(26)?, side(28)?))
        }
        b"VP8L" => {
            let bits = u32::from_le_bytes(part(bytes, 21)?);
            (*bytes.get(20)? == 0x2F).then_some(((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1))
        }
        b"VP8X" => {
            let side = |at| part(bytes, at).map(|[a, b, c]: [u8; 3]| u32::from_le_bytes([a, b, c, 0]) + 1);
            Some((side(24)?, side(27)?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The beginnings of real files.
    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\x80\0\0\x01\xe0\x08\x02\0\0\0";
    const GIF: &[u8] = b"GIF89a\x80\x02\xe0\x01\xf7\0\0";
    const JPEG: &[u8] = b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0\xff\xff\xdb\0\x04ab\
        \xff\xc2\0\x11\x08\x01\xe0\x02\x80\x03\x01\"\0";
    const LOSSY: &[u8] = b"RIFF\x24\0\0\0WEBPVP8 \x18\0\0\0\x30\x01\0\x9d\x01\x2a\x80\x02\xe0\x01\0";
    const LOSSLESS: &[u8] = b"RIFF\x24\0\0\0WEBPVP8L\x18\0\0\0\x2f\x7f\xc2\x77\0\0";
    const EXTENDED: &[u8] = b"RIFF\x24\0\0\0WEBPVP8X\x0a\0\0\0\x10\0\0\0\x7f\x02\0\xdf\x01\0";

    #[test]
    fn an_image_is_known_by_its_first_bytes() {
        let all = [("png", PNG), ("gif", GIF), ("jpeg", JPEG), ("webp", LOSSY), ("webp", LOSSLESS), ("webp", EXTENDED)];
        for (kind, bytes) in all {
            let picture = Picture::of(bytes).unwrap();
            assert_eq!(picture.media_type, format!("image/{kind}"));
            assert_eq!((picture.width, picture.height), (640, 480), "{kind}");
            // A cut image is refused or known, and never more than that.
            (0..bytes.len()).for_each(|end| drop(Picture::of(&bytes[..end])));
            assert!(Picture::of(&bytes[..9]).is_err(), "{kind}");
        }
        for other in [&b""[..], b"<svg>", b"%PDF-1.7", b"BM", b"RIFF\0\0\0\0WAVE"] {
            assert!(Picture::of(other).unwrap_err().contains("not a PNG"), "{other:?}");
        }
    }

    #[test]
    fn an_image_that_is_too_large_is_refused() {
        let mut wide = PNG.to_vec();
        wide[16..20].copy_from_slice(&8_001_u32.to_be_bytes());
        assert!(Picture::of(&wide).unwrap_err().contains("8001 x 480"));
        wide[16..20].copy_from_slice(&0_u32.to_be_bytes());
        assert!(Picture::of(&wide).is_err());
        let mut long = PNG.to_vec();
        long.resize(IMAGE_BYTES_MAX, 0);
        assert!(Picture::of(&long).is_ok());
        long.push(0);
        assert!(Picture::of(&long).unwrap_err().contains("3932161 bytes"));
        // Segments without an end are walked through once.
        let jpeg = [&b"\xff\xd8"[..], &b"\xff\xe0\0\x02".repeat(100_000)].concat();
        assert!(Picture::of(&jpeg).is_err());
    }
}
