//! The browser of the person at this machine. It is started without a shell, and gets one address.

use std::{
    ffi::OsString,
    os::unix::process::CommandExt as _,
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

/// Opens a page. Returns false if it cannot.
pub(crate) fn open(program: &OsString, page: &str) -> bool {
    if !SAFE.iter().any(|safe| page.starts_with(safe)) {
        return false;
    }
    let mut browser = Command::new(program);
    browser.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // In a group of its own: Ctrl-C here is not for it.
    browser.process_group(0).spawn().is_ok()
}

#[cfg(test)]
mod tests {
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
        for page in ["http://example.com/", "file:///etc/passwd", "--help", "javascript:alert(1)"] {
            assert!(!open(&"true".into(), page), "{page}");
        }
    }
}
