//! Results that are masked.

use super::*;

#[test]
fn an_unknown_outcome_is_never_masked() {
    let result = |content: &str| ToolResult {
        call_id: "c".to_owned(),
        name: "t".to_owned(),
        is_error: true,
        content: content.into(),
        images: Vec::new(),
    };
    let unknown = result("Outcome unknown; verify before repeating. The tool did not stop when it was asked to.");
    assert_eq!(unknown.masked(7), unknown);
    let long = result(&format!("Outcome unknown; verify before repeating. {}", "x".repeat(600)));
    assert!(long.masked(7).content.excerpt().starts_with("[masked: "));
    // Nothing is unknown of a call that succeeded, whatever it says.
    let forged = ToolResult { is_error: false, ..unknown };
    assert!(!forged.is_unknown() && forged.masked(7).content.excerpt().starts_with("[masked: "));
    let [media_type, blob] = ["image/png", "b10b"].map(str::to_owned);
    let image = Image { media_type, blob, bytes: 3, width: 1, height: 1 };
    assert_eq!(ToolResult { images: vec![image], ..long }.masked(7).images, []);
}
