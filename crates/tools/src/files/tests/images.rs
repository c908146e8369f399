//! Images of the workspace.

use super::*;

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\x80\0\0\x01\xe0\x08\x02\0\0\0";

#[tokio::test]
async fn an_image_is_known_by_its_bytes_and_returned_whole() {
    let fixture = Fixture::new();
    fixture.put("picture.txt", PNG);
    let invocation = fixture.invocation(1, &json!({ "path": "picture.txt" }));
    let sink = sink(invocation.session_id);
    fixture.tool("read").call(invocation, &sink).await.unwrap();
    let images = sink.take_images().await;
    let [image] = images.as_slice() else { panic!("{images:?}") };
    assert_eq!((image.media_type.as_str(), image.bytes), ("image/png", PNG.len() as u64));
    assert_eq!((image.width, image.height), (640, 480));
    let line = format!("[Image: image/png, 640 x 480 pixels, {} bytes]", PNG.len());
    assert_eq!(sink.finish().await.unwrap(), Body::Inline(line));
}

#[tokio::test]
async fn an_image_that_is_cut_or_too_large_is_refused() {
    let fixture = Fixture::new();
    fixture.put("cut.png", &PNG[..20]);
    fixture.check_refused("read", json!({ "path": "cut.png" }), "is cut").await;
    let large = fs::File::create(fixture.root().join("large.png")).unwrap();
    std::io::Write::write_all(&mut &large, PNG).unwrap();
    large.set_len(6 * 1024 * 1024 * 1024).unwrap();
    fixture.check_refused("read", json!({ "path": "large.png" }), "an image may have 3932160").await;
    fixture.put("name.png", "only text");
    assert_eq!(fixture.run("read", json!({ "path": "name.png" })).await.unwrap(), "1\tonly text\n");
}
