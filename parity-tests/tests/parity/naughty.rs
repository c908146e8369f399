//! Texts that are no id.

/// Some five hundred texts that are no id: paths, queries, scripts, controls, look-alikes, and damaged ids.
pub(crate) fn naughty_ids() -> Vec<String> {
    let id = "01900000-0000-7000-8000-000000000001";
    let mut ids: Vec<String> = [
        "..",
        ".",
        "../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "a/b",
        "\\\\host\\share",
        "C:\\x",
        "%00",
        "\u{0}",
        "\n",
        " ",
        "null",
        "undefined",
        "NaN",
        "-1",
        "0",
        "1e309",
        "true",
        "{}",
        "[]",
        "\"",
        "'",
        "' OR 1=1 --",
        "; rm -rf /",
        "$(id)",
        "`id`",
        "${x}",
        "<script>alert(1)</script>",
        "&lt;",
        "{{7*7}}",
        "%s%s%n",
        "\u{202e}desrever",
        "\u{feff}",
        "\u{200b}",
        "e\u{301}",
        "ﬁ",
        "İ",
        "ß",
        "😀",
        "田中さん",
        "ＡＢＣ",
        "\u{1b}[31m",
        "last",
        "*",
        "?",
        "#",
        "%",
        "%zz",
        "+",
        "=",
        "&",
        "session",
        "00000000",
    ]
    .map(str::to_owned)
    .to_vec();
    for at in 0..id.len() {
        for odd in ["g", "é", "\u{0}", "/", "%", "", "-0", "\u{ff10}", " ", "A\u{300}", "\n", "--"] {
            let damaged = format!("{}{odd}{}", &id[..at], &id[at + 1..]);
            // A digit that takes another's place is another id, not a damaged one.
            if damaged != id {
                ids.push(damaged);
            }
        }
    }
    ids.extend([
        format!("{id}0"),
        format!("{{{id}}}"),
        format!("urn:uuid:{id}"),
        id.replace('-', ""),
        "x".repeat(4000),
        id.repeat(50),
    ]);
    ids
}
