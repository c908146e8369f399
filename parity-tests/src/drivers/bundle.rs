//! A bundle between a scenario, where it stands in base64, and a surface that takes or gives its bytes.

use meerkat_service::service::BlobPage;
use serde_json::{Map, Value, json};

/// The page that the bytes of a whole bundle stand for.
pub(super) fn page(bytes: &[u8]) -> String {
    json!({ "data": base64(bytes), "next_cursor": null }).to_string()
}

/// Takes the bytes of a bundle out of the parameters. They are all of it: pieces are for surfaces that have them.
pub(super) fn take(params: &mut Map<String, Value>) -> Result<Vec<u8>, String> {
    if params.remove("is_last") != Some(Value::Bool(true)) {
        return Err("a bundle is imported in one piece here".to_owned());
    }
    let data = params.remove("data").and_then(|data| data.as_str().map(str::to_owned)).unwrap_or_default();
    BlobPage { data, next_offset: None }.bytes().ok_or_else(|| "the bundle is not base64".to_owned())
}

pub(super) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = |chunk: &[u8]| {
        let bits = chunk.iter().chain(&[0, 0]).take(3).fold(0, |bits, byte| bits << 8 | usize::from(*byte));
        let digit = |at: usize| if at > chunk.len() { '=' } else { char::from(DIGITS[bits >> (18 - 6 * at) & 63]) };
        (0..4).map(digit).collect::<String>()
    };
    bytes.chunks(3).map(digits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_in_base64() {
        // The examples of RFC 4648.
        let examples = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        for (bytes, text) in examples {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}
