//! The page's files: embedded, packed once, and sent with a policy that lets them load nothing but each other.

use std::{io::Write as _, sync::LazyLock};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use sha2::{Digest as _, Sha256};

use crate::sign_in::digits;

/// What the page may do. It may neither run nor load anything that is not one of these files, and no page may frame it.
/// Trusted types forbid every way from a text to HTML.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

/// A file of the page.
struct File {
    path: &'static str,
    content_type: &'static str,
    plain: Bytes,
    packed: Bytes,
    etag: HeaderValue,
}

macro_rules! files {
    ($(($path:literal, $name:literal, $content_type:expr),)*) => {
        /// Path, type and text of every file. The page has no other paths.
        const EMBEDDED: &[(&str, &str, &str)] =
            &[$(($path, $content_type, include_str!(concat!("../page/", $name)))),*];
    };
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

files![
    ("/", "index.html", "text/html; charset=utf-8"),
    ("/console/style.css", "style.css", "text/css; charset=utf-8"),
    ("/console/icon.svg", "icon.svg", "image/svg+xml"),
    ("/console/app.js", "app.js", SCRIPT),
    ("/console/api.js", "api.js", SCRIPT),
    ("/console/attached.js", "attached.js", SCRIPT),
    ("/console/dom.js", "dom.js", SCRIPT),
    ("/console/follow.js", "follow.js", SCRIPT),
    ("/console/markdown.js", "markdown.js", SCRIPT),
    ("/console/rows.js", "rows.js", SCRIPT),
    ("/console/shared.js", "shared.js", SCRIPT),
    ("/console/steps.js", "steps.js", SCRIPT),
    ("/console/views/approvals.js", "views/approvals.js", SCRIPT),
    ("/console/views/compare.js", "views/compare.js", SCRIPT),
    ("/console/views/context.js", "views/context.js", SCRIPT),
    ("/console/views/events.js", "views/events.js", SCRIPT),
    ("/console/views/health.js", "views/health.js", SCRIPT),
    ("/console/views/memory.js", "views/memory.js", SCRIPT),
    ("/console/views/options.js", "views/options.js", SCRIPT),
    ("/console/views/session.js", "views/session.js", SCRIPT),
    ("/console/views/sessions.js", "views/sessions.js", SCRIPT),
    ("/console/views/sign_in.js", "views/sign_in.js", SCRIPT),
    ("/console/views/tokens.js", "views/tokens.js", SCRIPT),
    ("/console/views/tools.js", "views/tools.js", SCRIPT),
    ("/console/views/transcript.js", "views/transcript.js", SCRIPT),
];

static FILES: LazyLock<Vec<File>> = LazyLock::new(|| {
    let made = EMBEDDED.iter().map(|&(path, content_type, text)| {
        let digest = digits(&Sha256::digest(text)[..8]);
        let etag = HeaderValue::try_from(format!("\"{digest}\"")).unwrap_or(HeaderValue::from_static("\"\""));
        File { path, content_type, plain: Bytes::from_static(text.as_bytes()), packed: pack(text), etag }
    });
    made.collect()
});

/// Packs a text. Writing to memory does not fail; if it did, an empty answer would say so.
fn pack(text: &str) -> Bytes {
    let mut packer = GzEncoder::new(Vec::new(), Compression::best());
    packer.write_all(text.as_bytes()).and_then(|()| packer.finish()).unwrap_or_default().into()
}

/// Returns true if a path is one of the page's files.
#[must_use]
pub fn is_file(path: &str) -> bool {
    EMBEDDED.iter().any(|(known, ..)| *known == path)
}

/// Answers a request for a file; `None` if there is no such file.
#[must_use]
pub fn answer(path: &str, asked: &HeaderMap) -> Option<Response<Bytes>> {
    let file = FILES.iter().find(|file| file.path == path)?;
    let lists = |name, wanted: &str| {
        let texts = asked.get_all(name).iter().filter_map(|value| value.to_str().ok());
        texts.flat_map(|text| text.split(',')).any(|part| part.trim().trim_start_matches("W/") == wanted)
    };
    let is_known = file.etag.to_str().is_ok_and(|etag| lists(header::IF_NONE_MATCH, etag));
    let is_packed = !is_known && lists(header::ACCEPT_ENCODING, "gzip");
    let body = match (is_known, is_packed) {
        (true, _) => Bytes::new(),
        (false, true) => file.packed.clone(),
        (false, false) => file.plain.clone(),
    };
    let mut response = Response::new(body);
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, file.content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Asked again each time, and answered by the etag: a new program never runs an old page.
        (header::CACHE_CONTROL, "no-cache"),
        (header::VARY, "accept-encoding"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
        .insert(header::HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin"));
    headers.insert(header::ETAG, file.etag.clone());
    if is_packed {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Some(response)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn asked(path: &str, headers: &[(&'static str, &str)]) -> Response<Bytes> {
        let headers =
            headers.iter().map(|(name, value)| (header::HeaderName::from_static(name), value.parse().unwrap()));
        answer(path, &headers.collect()).unwrap()
    }

    #[test]
    fn the_page_is_small_and_names_only_its_own_files() {
        let bytes: usize = EMBEDDED.iter().map(|(.., text)| text.len()).sum();
        assert!(bytes <= 150 * 1024, "{bytes} bytes are embedded");
        for (path, kind, text) in EMBEDDED {
            let folder = path.rsplit_once('/').unwrap().0;
            let lines = text.lines().filter(|line| line.starts_with("import ") || line.starts_with("} from "));
            let imports = lines.filter_map(|line| line.split_once("from \"")?.1.split('"').next());
            for import in imports.filter(|_| *kind == SCRIPT) {
                let mut parts: Vec<&str> = folder.split('/').collect();
                for part in import.split('/') {
                    match part {
                        "." => {}
                        ".." => drop(parts.pop()),
                        name => parts.push(name),
                    }
                }
                assert!(is_file(&parts.join("/")), "{path} imports {import}");
            }
            for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "style=\""] {
                assert!(!text.contains(forbidden), "{path}: {forbidden}");
            }
            // The name of SVG's elements is not an address.
            let others = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!others.contains("//cdn") && !others.contains("src=\"http"), "{path} asks elsewhere");
        }
    }

    #[test]
    fn a_file_comes_packed_once_and_not_again() {
        let plain = asked("/", &[]);
        assert_eq!((plain.status(), plain.headers().get("content-encoding")), (StatusCode::OK, None));
        let policy = plain.headers()["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
        let packed = asked("/", &[("accept-encoding", "br, gzip")]);
        assert_eq!(packed.headers()["content-encoding"], "gzip");
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(&packed.body()[..]).read_to_end(&mut text).unwrap();
        assert_eq!(text, plain.body()[..]);
        let etag = plain.headers()["etag"].to_str().unwrap();
        let again = asked("/", &[("if-none-match", etag)]);
        assert_eq!((again.status(), again.body().len()), (StatusCode::NOT_MODIFIED, 0));
    }

    #[test]
    fn nothing_else_is_a_file() {
        for path in ["", "/index.html", "/console/", "/console", "//", "/console/../v1/sessions", "/console/app.js/"] {
            assert!(!is_file(path) && answer(path, &HeaderMap::new()).is_none(), "{path}");
        }
    }
}
