//! The browser of the person at this machine. It is started without a shell, and gets one address: of a file that leads
//! to the page, because every user of the machine can read the arguments of a program.

use std::{
    ffi::OsString,
    fs,
    io::{self, Write as _},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{DirBuilderExt as _, OpenOptionsExt as _},
        process::CommandExt as _,
    },
    path::Path,
    process::{Command, Stdio},
};

use crate::output::Environment;

/// Addresses that a browser may be sent to: their beginnings.
const SAFE: [&str; 4] = ["https://", "http://127.0.0.1:", "http://[::1]:", "http://localhost:"];

/// Returns the program that shows pages: that of `BROWSER`, else the system's; `None` if nobody here would see them.
pub(crate) fn program(env: &Environment) -> Option<OsString> {
    let value = |name: &str| env.variables.get(name).filter(|value| !value.is_empty());
    let is_macos = cfg!(target_os = "macos");
    if !is_macos && value("DISPLAY").or_else(|| value("WAYLAND_DISPLAY")).is_none() {
        return None;
    }
    Some(value("BROWSER").cloned().unwrap_or_else(|| if is_macos { "open" } else { "xdg-open" }.into()))
}

/// Opens a page, by way of a file in `folder`. Returns false if it cannot.
pub(crate) fn open(program: &OsString, page: &str, folder: &Path) -> bool {
    if !SAFE.iter().any(|safe| page.starts_with(safe)) {
        return false;
    }
    let Ok(file) = lead(page, folder) else { return false };
    let mut browser = Command::new(program);
    browser.arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // In a group of its own: Ctrl-C here is not for it.
    browser.process_group(0).spawn().is_ok()
}

/// Writes the file that leads to a page, in place of a former one, and returns its address. Only this user can read it.
fn lead(page: &str, folder: &Path) -> io::Result<String> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let path = folder.join("opened.html");
    if let Err(error) = fs::remove_file(&path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let page = page.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;");
    write!(
        file,
        "<!doctype html><meta charset=\"utf-8\"><meta name=\"referrer\" content=\"no-referrer\"><title>meerkat</title>\n\
         <meta http-equiv=\"refresh\" content=\"0;url={page}\">\n<p><a href=\"{page}\">Continue</a></p>\n"
    )?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    let written = |&byte: &u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    Ok(format!("file://{}", path.as_os_str().as_bytes().iter().map(written).collect::<String>()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_who_has_a_display_has_a_browser_and_no_other_address_is_opened() {
        let program = |variables: &[(&str, &str)]| {
            let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
            program(&Environment { variables, dir: "/".into() })
        };
        let named = program(&[("DISPLAY", ":0"), ("BROWSER", "firefox")]);
        assert_eq!(named, Some("firefox".into()));
        assert!(program(&[("WAYLAND_DISPLAY", "wayland-0")]).is_some());
        assert_eq!(program(&[("BROWSER", "firefox"), ("DISPLAY", "")]).is_some(), cfg!(target_os = "macos"));
        let folder = tempfile::tempdir().unwrap();
        for page in ["http://example.com/", "file:///etc/passwd", "--help", "javascript:alert(1)"] {
            assert!(!open(&"true".into(), page, folder.path()), "{page}");
        }
        assert!(open(&"true".into(), "https://example.com/", folder.path()));
    }

    #[test]
    fn the_file_that_leads_to_a_page_is_the_users_alone_and_says_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("a b#c");
        fs::create_dir(&below).unwrap();
        // One that others can read gives way.
        fs::write(below.join("opened.html"), "").unwrap();
        let address = lead("https://example.com/?a=1&b=\"><script>", &below).unwrap();
        assert!(address.starts_with("file:///") && address.ends_with("/a%20b%23c/opened.html"), "{address}");
        let file = below.join("opened.html");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(file).unwrap();
        assert!(
            text.contains("0;url=https://example.com/?a=1&amp;b=&quot;>&lt;script>\"") && !text.contains("<script"),
            "{text}"
        );
    }
}
