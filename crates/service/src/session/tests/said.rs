//! What the prompts of walks say and ask for.

use std::sync::Arc;

use crate::{
    output::OutputSpec,
    session::message::{Attached, AttachedFile, BlobRef, Body, Image, RawJson},
};

/// The schema of a turn's answer, if it has one.
pub(super) fn output(detail: usize) -> Option<Arc<OutputSpec>> {
    let schema = RawJson::parse(&format!(r#"{{"type":"object","maxProperties":{}}}"#, detail % 2)).unwrap();
    (detail % 3 == 1).then(|| Arc::new(OutputSpec::new(schema)))
}

pub(super) fn body(detail: usize) -> Body {
    let text = "é\"\n".repeat(detail % 20);
    if detail % 9 == 8 {
        return Body::Blob(BlobRef { blob: "b10b".to_owned(), bytes: 5000, head: text.clone(), tail: text });
    }
    Body::Inline(text)
}

/// Images and files: none, or some of each kind.
pub(super) fn blocks(detail: usize) -> Vec<Attached> {
    let file = |name: &str, media_type: &str, bytes| {
        let [name, media_type, blob] = [name, media_type, "b10b"].map(str::to_owned);
        let pages = (bytes % 3 == 0).then_some(2_000);
        Attached::File(AttachedFile { name, media_type, blob, bytes, pages })
    };
    let [media_type, blob] = ["image/png", "b10b"].map(str::to_owned);
    let image = Attached::Image(Image { media_type, blob, bytes: 900, width: 3, height: 5 });
    let all = [
        image,
        file("<pin n=\"1\">.txt", "text/plain", 100_000 * (detail as u64 % 2)),
        file("é.pdf", "application/pdf", 40_000 * (detail as u64 % 3)),
    ];
    all[..(detail % 7).saturating_sub(3)].to_vec()
}
