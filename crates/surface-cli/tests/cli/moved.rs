//! Which files a server takes for those of its project. What commands take is in `transcripts/moved.md`.

use std::fs;

use meerkat_testkit::until;

use crate::drive::{
    meerkat,
    server::{SERVE, Server},
};

/// Broken once, for servers too: somebody's files in a folder above made all below it their project.
#[test]
fn a_server_takes_no_files_of_a_folder_above_for_those_of_its_project() {
    let home = meerkat_testkit::folder();
    let [theirs, mine] = ["shared/.rkat", "shared/mine/.rkat"].map(|folder| home.path().join(folder));
    fs::create_dir_all(&theirs).unwrap();
    fs::create_dir(home.path().join("shared/mine")).unwrap();
    let mark = "00000000-0000-7000-8000-000000000001\n";
    fs::write(theirs.join("store"), mark).unwrap();
    let mut command = meerkat(&home, &SERVE);
    command.current_dir(home.path().join("shared/mine"));
    let server = Server::run(command, &[], None);
    let files = mine.join("sessions").join(server.session());
    until("the session has its files", || files.exists());
    drop(server);
    assert_ne!(fs::read_to_string(mine.join("store")).unwrap(), mark);
    assert_eq!(fs::read_to_string(theirs.join("store")).unwrap(), mark);
    assert_eq!(fs::read_dir(theirs).unwrap().count(), 1);
}
