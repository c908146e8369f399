//! Texts of commands: other users of the machine do not see them, and they may be long.

use std::{
    fs,
    io::Write as _,
    mem::MaybeUninit,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::{Command, Output, Stdio},
};

use libtest_mimic::Trial;
use meerkat_testkit::until;
use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
};
use serde_json::{Value, json};

use super::{
    place::{Place, has_namespaces},
    work::{count, mark},
};

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    let trials: [(&str, fn()); _] = [
        ("no_text_of_a_command_is_seen_by_other_users", no_text_is_seen),
        ("a_command_of_a_megabyte_runs_in_every_shell", a_command_of_a_megabyte),
    ];
    trials.into_iter().map(|(name, trial)| {
        Trial::test(name, move || {
            trial();
            Ok(())
        })
    })
}

/// A job as the service gives it to a keeper, which runs nothing more than this.
pub(crate) fn job(place: &Place, shell: &str, command: &str, reach: &str) -> Value {
    let guard = if has_namespaces() { "namespace" } else { "compare" };
    json!({
        "shell": shell, "command": command, "folder": place.workspace, "workspace": place.workspace,
        "is_read_only": false, "temporary": "/var/tmp", "readable": ["/usr", "/bin", "/lib", "/lib64", "/etc", "/proc"],
        "hidden": [], "shadows": [], "reach": reach, "git": false, "obeyed": [], "search_path": null,
        "confinement": {"files": true, "network": true, "git_guard": guard},
    })
}

/// Runs a job by a keeper, which gets it from its socket, as it does from the service; then comes the network. Returns
/// what it printed, and what it told the service.
pub(crate) fn keep(job: &Value, network: Option<BorrowedFd<'_>>) -> (Output, String) {
    let (mut control, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new("/proc/self/exe");
    command.arg("__meerkat-confined").stdin(Stdio::from(OwnedFd::from(theirs)));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    let job = job.to_string();
    control.write_all(&(job.len() as u64).to_ne_bytes()).unwrap();
    control.write_all(job.as_bytes()).unwrap();
    if let Some(network) = network {
        let held = [network];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control_data = SendAncillaryBuffer::new(&mut space);
        control_data.push(SendAncillaryMessage::ScmRights(&held));
        sendmsg(&control, &[std::io::IoSlice::new(b"n")], &mut control_data, SendFlags::empty()).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    (output, std::io::read_to_string(&control).unwrap())
}

/// Broken once: the arguments of the keeper and of the shell showed it to every user of the machine.
fn no_text_is_seen() {
    let place = Place::new();
    let mark = mark(7);
    mknodat(CWD, place.workspace.join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let command = format!(": secret {mark}; : > started; read line < pipe; echo \"$line\"");
    std::thread::scope(|scope| {
        let running = scope.spawn(|| place.succeeds(&command));
        until("the command runs", || place.workspace.join("started").exists());
        let seen = (count(&mark), count("__meerkat-confined") > 0);
        fs::write(place.workspace.join("pipe"), "on\n").unwrap();
        assert_eq!(running.join().unwrap(), "on\n");
        assert_eq!(seen, (0, true), "the keeper is seen, and no text");
    });
}

/// `sh` reads the text by another way than `bash`.
fn a_command_of_a_megabyte() {
    let place = Place::new();
    let long = "x".repeat(1 << 20);
    for shell in ["/bin/bash", "/bin/sh"] {
        let command = format!("text='{long}'; echo ${{#text}} $0; cat; ls /proc/self/fd\nno-such-program\nexit 7");
        let (output, told) = keep(&job(&place, shell, &command, "nothing"), None);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!((output.status.code(), &*told), (Some(7), ""), "{err}");
        assert_eq!(out, format!("{} {shell}\n0\n1\n2\n3\n", long.len()), "{err}");
        assert!(err.starts_with(&format!("{shell}: ")) && err.ends_with("not found\n"), "{err}");
        assert!(err.lines().count() == 1 && err.contains('2'), "its line is told: {err}");
    }
}
