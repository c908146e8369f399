//! Ways out of the confinement, each closed.

use std::{
    fs,
    io::Read as _,
    os::unix::net::{UnixDatagram, UnixListener},
    process::{Command, Stdio},
};

use libtest_mimic::Trial;
use meerkat_service::tool::Network;
use meerkat_testkit::until;
use serde_json::json;

use super::{
    place::{Place, has_namespaces, has_networks},
    work::{count, mark},
};

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    let trials: [(&str, fn()); _] = [
        ("no_file_outside_is_written", no_file_outside_is_written),
        ("no_file_outside_is_read", no_file_outside_is_read),
        ("no_mode_outside_is_changed", no_mode_outside_is_changed),
        ("no_descriptor_is_inherited", no_descriptor_is_inherited),
        ("no_socket_is_made_but_of_the_sessions_network", no_socket_is_made),
        ("no_service_of_this_machine_gets_a_datagram", no_datagram_arrives),
        ("no_service_of_this_machine_is_reached", no_service_is_reached),
        ("no_socket_of_this_machine_is_seen", no_socket_is_seen),
        ("no_other_process_is_touched", no_other_process_is_touched),
        ("no_forbidden_call_is_made", no_forbidden_call_is_made),
        ("no_file_of_sessions_is_changed", no_file_of_sessions_is_changed),
        ("a_deep_folder_is_removed_and_harms_nothing", a_deep_folder_is_removed),
        ("files_of_gigabytes_that_git_obeys_are_not_read", files_of_gigabytes_are_not_read),
        ("no_set_id_program_is_left", no_set_id_program_is_left),
        ("no_password_in_a_configuration_is_read", no_password_is_read),
        ("no_process_outlives_its_call", no_process_outlives_its_call),
        ("no_process_outlives_the_service", no_process_outlives_the_service),
        ("a_data_directory_in_the_workspace_is_hidden", a_data_directory_is_hidden),
        ("a_hidden_file_in_the_workspace_is_no_way_to_a_device", a_hidden_file_leads_nowhere),
    ];
    let helper = std::env::var_os("TEST_SERVICE").map(|_| {
        Trial::test("service", || {
            service();
            Ok(())
        })
    });
    trials
        .into_iter()
        .map(|(name, trial)| {
            Trial::test(name, move || {
                trial();
                Ok(())
            })
        })
        .chain(helper)
        .chain(has_namespaces().then(of_home_folder))
}

/// What is hidden in a folder that may be read is hidden by a namespace.
fn of_home_folder() -> Trial {
    Trial::test("a_home_folder_that_may_be_read_shows_no_secret", || {
        a_home_folder_shows_no_secret();
        Ok(())
    })
}

/// The trial that leaves no process to others, where a user has a limit of them.
pub(crate) fn alone() -> Option<Trial> {
    let trial = || {
        Trial::test("a_fork_bomb_ends_with_its_call", || {
            a_fork_bomb_ends();
            Ok(())
        })
    };
    (!rustix::process::geteuid().is_root() && has_namespaces()).then(trial)
}

fn no_file_outside_is_written() {
    let place = Place::new();
    let outside = place.folder.path().join("outside");
    let outside = outside.display();
    std::os::unix::fs::symlink("../outside", place.workspace.join("link")).unwrap();
    std::os::unix::fs::symlink("..", place.workspace.join("up")).unwrap();
    fs::write(place.workspace.join("file"), "mine").unwrap();
    for command in [
        format!("echo x > {outside}"),
        format!("echo x >> {outside}"),
        "echo x > ../new".to_owned(),
        "echo x > link".to_owned(),
        "echo x > up/new".to_owned(),
        format!("ln {outside} hard && echo x > hard"),
        "mv file ../moved".to_owned(),
        "mv ../outside .".to_owned(),
        "rm ../outside".to_owned(),
        "mkdir ../folder".to_owned(),
        "ln -s file ../symlink".to_owned(),
        format!("truncate -s 0 {outside}"),
        format!("echo x > /proc/self/root{outside}"),
        format!("echo x > /proc/1/root{outside}"),
        format!("echo x > /proc/$PPID/root{outside}"),
        "echo x > /proc/self/cwd/../outside".to_owned(),
        "echo x > /etc/meerkat-escape".to_owned(),
        "echo x > /var/tmp/meerkat-escape".to_owned(),
        "echo x > $HOME/meerkat-escape".to_owned(),
        "echo 1 > /proc/sys/kernel/core_pattern".to_owned(),
    ] {
        place.fails(&command);
        place.is_untouched();
    }
}

fn no_file_outside_is_read() {
    let place = Place::new();
    let folder = place.folder.path().display();
    std::os::unix::fs::symlink("../outside", place.workspace.join("link")).unwrap();
    for command in [
        "cat ../outside".to_owned(),
        "cat link".to_owned(),
        "ls ..".to_owned(),
        format!("cat {folder}/data/token"),
        format!("ln {folder}/outside hard && cat hard"),
        format!("cat /proc/self/root{folder}/outside"),
        format!("cat /proc/$PPID/root{folder}/outside"),
        "ls $HOME".to_owned(),
        "cat /etc/shadow".to_owned(),
        "cat /dev/mem".to_owned(),
        "ls /dev/pts".to_owned(),
        "ls /run".to_owned(),
    ] {
        let text = place.fails(&command);
        assert!(!text.contains("owner's"), "{command}: {text}");
    }
}

fn no_mode_outside_is_changed() {
    let place = Place::new();
    // Landlock does not know these calls; the read-only mounts refuse them.
    if has_namespaces() {
        for command in
            ["chmod 777 ../outside", "touch -d 2000-01-01 ../outside", "chmod 777 ../data ..", "chown 1 ../outside"]
        {
            place.fails(command);
        }
        place.succeeds("echo x > file && chmod 700 file && touch -d 2000-01-01 file");
    }
}

fn no_descriptor_is_inherited() {
    let place = Place::new();
    let text = place.succeeds("ls -l /proc/self/fd");
    let open: Vec<&str> = text.lines().filter(|line| line.contains("->")).collect();
    // Those of `ls` itself: three and the folder that it lists.
    assert_eq!(open.len(), 4, "{text}");
    assert!(open[0].ends_with("/dev/null") && !text.contains("socket:"), "{text}");
    let text = place.shell("cat /proc/1/fd/0; cat /proc/$PPID/fd/0; ls -l /proc/1/fd/ /proc/$PPID/fd/");
    assert!(!text.contains("socket:"), "{text}");
}

fn no_socket_is_made() {
    let place = Place::new();
    let refused = |socket: &str| {
        let text = place.fails(&format!("python3 -c 'from socket import *; socket({socket})'"));
        assert!(text.contains("Operation not permitted"), "{socket}: {text}");
    };
    for family in ["AF_UNIX", "AF_PACKET", "AF_VSOCK", "AF_ALG"] {
        ["SOCK_STREAM", "SOCK_DGRAM", "SOCK_RAW"].iter().for_each(|kind| refused(&format!("{family}, {kind}")));
    }
    ["AF_INET, SOCK_RAW, 1", "AF_INET6, SOCK_RAW, 58", "AF_NETLINK, SOCK_RAW, 4"]
        .iter()
        .for_each(|socket| refused(socket));
    for socket in ["AF_INET, SOCK_STREAM", "AF_INET6, SOCK_DGRAM", "AF_NETLINK, SOCK_RAW"] {
        if has_networks() {
            place.succeeds(&format!("python3 -c 'from socket import *; socket({socket})'"));
        } else {
            refused(socket);
        }
    }
    for network in [false, true] {
        let place = Place::with(if network { Network::Allow } else { Network::Deny });
        for kind in ["SOCK_DGRAM", "SOCK_RAW", "SOCK_RDM", "SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK"] {
            let code = format!("import socket; socket.socketpair(socket.AF_UNIX, socket.{kind})");
            let text = place.fails(&format!("python3 -c '{code}'"));
            assert!(text.contains("Operation not permitted"), "{kind}: {text}");
        }
        for kind in ["SOCK_STREAM", "SOCK_STREAM | socket.SOCK_NONBLOCK", "SOCK_SEQPACKET"] {
            let code = format!(
                "import socket; a, b = socket.socketpair(socket.AF_UNIX, socket.{kind}); a.send(b\"x\"); \
                 assert b.recv(1) == b\"x\""
            );
            place.succeeds(&format!("python3 -c '{code}'"));
        }
    }
}

/// A service that takes datagrams, such as that of the system's log.
fn no_datagram_arrives() {
    let place = Place::new();
    let service = UnixDatagram::bind(place.workspace.join("log")).unwrap();
    service.set_nonblocking(true).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(place.workspace.join("log"), mode).unwrap();
    for kind in ["SOCK_DGRAM", "SOCK_RAW", "SOCK_STREAM", "SOCK_SEQPACKET"] {
        for send in [
            "a.sendto(b\"x\", \"log\")",
            "a.connect(\"log\"); a.send(b\"x\")",
            "a.sendmsg([b\"x\"], [], 0, \"log\")",
            "b.close(); a.sendto(b\"x\", \"log\")",
            "b.close(); a.shutdown(2); a.connect(\"log\")",
        ] {
            let code = format!("import socket; a, b = socket.socketpair(socket.AF_UNIX, socket.{kind}); {send}");
            place.shell(&format!("python3 -c '{code}'"));
            let received = service.recv(&mut [0; 8]).unwrap_err();
            assert_eq!(received.kind(), std::io::ErrorKind::WouldBlock, "{kind}: {send}");
        }
    }
}

fn no_service_is_reached() {
    let place = Place::new();
    // Our own; those of docker and the system's bus; one without a path; and an agent's in the workspace itself, which
    // no rule about files hides.
    let listen = |path: &std::path::Path| {
        let listener = UnixListener::bind(path).unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    };
    let (own, agent) = (place.folder.path().join("data/owner.sock"), place.workspace.join("agent.sock"));
    let listeners = [listen(&own), listen(&agent)];
    let sockets = [
        "/var/run/docker.sock",
        "/run/dbus/system_bus_socket",
        "\\0meerkat-test-bus",
        own.to_str().unwrap(),
        agent.to_str().unwrap(),
    ];
    for socket in sockets {
        let code = format!("import socket; socket.socket(socket.AF_UNIX).connect(\"{socket}\")");
        for network in [false, true] {
            let arguments = json!({"command": format!("python3 -c '{code}'"), "network": network});
            let (text, result) = place.call("shell", &arguments);
            assert!(result.is_ok() && text.contains("Operation not permitted"), "{socket}: {text}");
        }
    }
    for listener in listeners {
        assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }
}

/// The folders in which services have their sockets, and that of the temporary files of all, in which this workspace is.
fn no_socket_is_seen() {
    let place = Place::over(tempfile::tempdir_in("/tmp").unwrap(), Network::Allow);
    let named = |folder: &str| std::path::PathBuf::from(format!("{folder}/meerkat-{}.sock", mark(11)));
    let sockets = ["/tmp", "/run"].map(named);
    let listeners = sockets.each_ref().map(UnixListener::bind);
    // Nobody but root makes one in `/run`.
    assert!(listeners[0].is_ok() && (listeners[1].is_ok() || !rustix::process::geteuid().is_root()));
    for (socket, _) in sockets.iter().zip(listeners).filter(|(_, made)| made.is_ok()) {
        let seen = place.shell(&format!("stat {}", socket.display()));
        fs::remove_file(socket).unwrap();
        assert_eq!(seen.ends_with("exit code 0"), !has_namespaces(), "{seen}");
    }
    // What commands need of these folders is there.
    place.succeeds("echo x > $TMPDIR/file && mv $TMPDIR/file here && cat here /etc/resolv.conf");
    if fs::read_link("/var/run").is_ok() {
        place.succeeds("test -d /var/run/ && test -d /run");
    }
}

fn no_other_process_is_touched() {
    let place = Place::new();
    let me = std::process::id();
    let mut victim = Command::new("sleep")
        .arg("87654")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let it = victim.id();
    for pid in [me, it] {
        for command in [
            format!("kill -0 {pid}"),
            format!("kill -9 {pid}"),
            format!("cat /proc/{pid}/environ"),
            format!("cat /proc/{pid}/maps"),
            format!("readlink /proc/{pid}/fd/0"),
            format!("ls /proc/{pid}/root"),
            format!("ls /proc/{pid}/cwd/"),
            format!("head -c 1 /proc/{pid}/mem"),
        ] {
            place.fails(&command);
        }
    }
    // The keeper and the entrance.
    for command in
        ["cat /proc/$PPID/environ", "readlink /proc/$PPID/fd/0", "head -c 1 /proc/$PPID/mem", "ls /proc/$PPID/root"]
    {
        place.fails(command);
    }
    if has_namespaces() {
        let text = place.succeeds("cat /proc/[0-9]*/cmdline | tr '\\0' ' '");
        assert!(!text.contains("87654") && text.contains("cmdline"), "{text}");
    }
    place.shell("kill -9 $PPID; kill -9 0");
    assert!(victim.try_wait().unwrap().is_none(), "it lives");
    victim.kill().unwrap();
    victim.wait().unwrap();
}

fn no_forbidden_call_is_made() {
    let place = Place::new();
    let program = place.compile(
        "calls",
        r#"
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#define TRY(wanted, ...) do { errno = 0; long r = syscall(__VA_ARGS__); \
    if (r != -1 || errno != wanted) { printf("%s: %ld, errno %d\n", #__VA_ARGS__, r, errno); bad = 1; } } while (0)
int main(void) {
    int bad = 0; char c = 'x'; char zeros[256] = {0};
    TRY(EPERM, SYS_ptrace, 0, 0, 0, 0);
    TRY(EPERM, SYS_process_vm_readv, getppid(), zeros, 0, zeros, 0, 0);
    TRY(EPERM, SYS_process_vm_writev, getppid(), zeros, 0, zeros, 0, 0);
    TRY(EPERM, SYS_mount, "none", "/tmp", "tmpfs", 0, 0);
    TRY(EPERM, SYS_umount2, "/proc", 2);
    TRY(EPERM, SYS_pivot_root, "/", "/");
    TRY(EPERM, SYS_chroot, "/");
    TRY(EPERM, SYS_open_tree, -100, "/", 1);
    TRY(EPERM, SYS_move_mount, -1, "", -1, "", 0);
    TRY(EPERM, SYS_fsopen, "tmpfs", 0);
    TRY(EPERM, SYS_unshare, CLONE_NEWUSER);
    TRY(EPERM, SYS_unshare, 0);
    TRY(EPERM, SYS_setns, 0, 0);
    TRY(EPERM, SYS_clone, CLONE_NEWUSER | 17, 0, 0, 0, 0);
    TRY(ENOSYS, SYS_clone3, zeros, sizeof zeros);
    TRY(ENOSYS, SYS_openat2, -100, "x", zeros, sizeof zeros);
    TRY(EPERM, SYS_io_uring_setup, 1, zeros);
    TRY(EPERM, SYS_io_uring_enter, 0, 0, 0, 0, 0, 0);
    TRY(EPERM, SYS_io_uring_register, 0, 0, 0, 0);
    TRY(EPERM, SYS_bpf, 0, zeros, 0);
    TRY(EPERM, SYS_perf_event_open, zeros, 0, 0, 0, 0);
    TRY(EPERM, SYS_userfaultfd, 0);
    TRY(EPERM, SYS_keyctl, 0, 0, 0, 0, 0);
    TRY(EPERM, SYS_add_key, "user", "x", "y", 1, -2);
    TRY(EPERM, SYS_kexec_load, 0, 0, 0, 0);
    TRY(EPERM, SYS_init_module, 0, 0, "");
    TRY(EPERM, SYS_finit_module, 0, "", 0);
    TRY(EPERM, SYS_open_by_handle_at, -1, zeros, 0);
    TRY(EPERM, SYS_ioctl, 0, TIOCSTI, &c);
    TRY(EPERM, SYS_ioctl, 0, (unsigned long)TIOCSTI | 1UL << 40, &c);
    TRY(EPERM, SYS_ioctl, 0, TIOCLINUX, &c);
#ifdef __x86_64__
    TRY(EPERM, SYS_socket | 0x40000000, 1, 1, 0);
    TRY(EPERM, 521 | 0x40000000, 0, 0, 0, 0);
#endif
    return bad;
}
"#,
    );
    place.succeeds(&program);
    for field in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
        place.succeeds(&format!("grep -q '{field}' /proc/self/status"));
    }
    // Root keeps its rights over files, which are told by the five lowest bits but one, and nobody has any other.
    let text = place.succeeds("grep -E 'Cap(Inh|Prm|Eff|Amb)' /proc/self/status");
    for set in text.lines() {
        let bits = u64::from_str_radix(set.split_whitespace().last().unwrap(), 16).unwrap();
        assert_eq!(bits & !0b11011, 0, "{text}");
    }
}

fn no_file_of_sessions_is_changed() {
    let place = Place::new();
    fs::create_dir_all(place.workspace.join(".rkat/sessions/a")).unwrap();
    fs::write(place.workspace.join(".rkat/sessions/a/transcript.md"), "# Session\n").unwrap();
    if has_namespaces() {
        for command in [
            "rm .rkat/sessions/a/transcript.md",
            "ln -sf /etc/passwd .rkat/sessions/a/transcript.md",
            "mv .rkat/sessions .rkat/old",
            "mv .rkat old",
            "mkdir .rkat/sessions/b",
        ] {
            let text = place.fails(command);
            assert!(text.contains("Read-only") || text.contains("busy"), "{command}: {text}");
        }
    }
    assert_eq!(place.succeeds("cat .rkat/sessions/a/transcript.md"), "# Session\n");
}

/// A folder so deep that a recursion over it ends the process, in each place that this program looks at or removes.
fn a_deep_folder_is_removed() {
    // Many disks wait for each folder that is removed.
    if std::env::var_os(super::IN_MEMORY).is_none() {
        return super::elsewhere("in-memory", "a_deep_folder_is_removed_and_harms_nothing");
    }
    let place = Place::new();
    place.git();
    let mark = format!("deep-{}", mark(9));
    let _deep = Deep { place: &place, mark: &mark };
    // From the bottom up: Landlock walks the whole way up for each new folder.
    let program = place.compile(
        "deep",
        "#include <stdio.h>\n#include <sys/stat.h>\n#include <unistd.h>\nint main(int n, char **a) { \
         if (chdir(a[1]) || mkdir(\"odd\", 0700)) return 1; \
         for (int i = 0; i < 15000; i++) { \
         if (mkdir(\"even\", 0700) || rename(\"odd\", \"even/d\")) return 2; \
         if (mkdir(\"odd\", 0700) || rename(\"even\", \"odd/d\")) return 3; } \
         return rename(\"odd\", a[2]); }",
    );
    let text = place.succeeds_with_git(&format!(
        "{program} $TMPDIR {mark} && {program} . {mark} && {program} .git config.worktree && {program} .git/hooks {mark}"
    ));
    assert!(text.contains("config.worktree changed while the command ran"), "{text}");
    assert!(place.succeeds("echo on").starts_with("on"), "the next command runs");
    let left =
        fs::read_dir(std::env::temp_dir()).unwrap().flatten().filter(|folder| folder.path().join(&mark).exists());
    assert_eq!(left.count(), 0, "the temporary folder stays");
}

/// A file of which nothing is stored has any size for nothing: broken once, each command took all of it into memory.
fn files_of_gigabytes_are_not_read() {
    const SIZE: u64 = 3 << 30;
    let place = Place::new();
    place.git().owners_git("config core.hooksPath .husky");
    fs::create_dir(place.workspace.join(".husky")).unwrap();
    for name in [".git/hooks/commit-msg", ".git/commondir-of-nobody", ".git/config.worktree", ".husky/pre-commit"] {
        fs::File::create(place.workspace.join(name)).unwrap().set_len(SIZE).unwrap();
    }
    let before = peak_kib();
    assert!(place.succeeds("echo on").starts_with("on"));
    // Without a namespace, or with git open, the files are compared before and after.
    let text = place.succeeds_with_git("echo more >> .git/hooks/commit-msg && echo on");
    assert!(text.contains("hooks/commit-msg changed while the command ran"), "{text}");
    let grown = peak_kib() - before;
    assert!(grown * 1024 < SIZE / 3, "{grown} KiB");
}

/// Most memory that this process ever had, in KiB.
fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Deep folders in a workspace, which is removed by a recursion, also where a test has failed.
struct Deep<'a> {
    place: &'a Place,
    mark: &'a str,
}

impl Drop for Deep<'_> {
    fn drop(&mut self) {
        let folder = fs::File::open(&self.place.workspace).unwrap();
        for path in [self.mark, ".git"] {
            if self.place.workspace.join(path).exists() {
                meerkat_service::folder::remove(&folder, path.as_ref()).unwrap();
            }
        }
    }
}

/// Configurations of git and cargo in the home folder, which commands may read.
fn no_password_is_read() {
    if !has_namespaces() {
        // No file has another content there, and every command asks.
        return;
    }
    let home = tempfile::tempdir_in("/var/tmp").unwrap();
    let put = |path: &str, text: &str| {
        let path = home.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put(
        ".gitconfig",
        "[user]\n\tname = Ann\n[http]\n\textraheader = Authorization: t0ken\n[include]\n\tpath = ~/work.inc\n",
    );
    put("work.inc", "[user]\n\temail = ann@work\n[url \"https://t0ken@x/\"]\n\tinsteadOf = https://x/\n");
    put(".config/git/config", "[user]\n\tname = Old\n[github]\n\toauth-token = t0ken\n");
    put(".cargo/config.toml", "[registries.own]\nindex = \"sparse+https://own/\"\ntoken = \"t0ken\"\n");
    let place = Place::at_home(home.path());
    place.git();
    for command in
        ["cat ~/.gitconfig ~/.config/git/config ~/.cargo/config.toml", "git config --list", "cd / && git config --list"]
    {
        let text = place.shell(command);
        assert!(!text.contains("t0ken") && text.contains("exit code 0"), "{command}: {text}");
    }
    place.fails("cat ~/work.inc");
    assert!(place.succeeds("cat ~/.cargo/config.toml").contains("https://own/"));
    let names = place.succeeds("cd / && git config user.name && git config user.email && ls -A $TMPDIR");
    assert_eq!(names, "Ann\nann@work\n");
    place.fails("echo evil >> ~/.gitconfig");
    assert!(
        fs::read_to_string(home.path().join(".gitconfig")).unwrap().contains("t0ken"),
        "the user's file is as it was"
    );
}

fn no_set_id_program_is_left() {
    let place = Place::new();
    let program = place.compile(
        "modes",
        r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#define TRY(...) do { errno = 0; long r = syscall(__VA_ARGS__); \
    if (r != -1 || errno != EPERM) { printf("%s: %ld, errno %d\n", #__VA_ARGS__, r, errno); bad = 1; } } while (0)
int main(void) {
    int bad = 0, file = open("file", O_CREAT | O_RDWR, 0700);
    int modes[] = {04755, 02755, 06777, 04000, 02000};
    for (int i = 0; i < 5; i++) {
        int mode = modes[i];
        TRY(SYS_fchmod, file, mode);
        TRY(SYS_fchmodat, AT_FDCWD, "file", mode);
        TRY(SYS_fchmodat2, AT_FDCWD, "file", mode, 0);
        TRY(SYS_openat, AT_FDCWD, "a", O_CREAT | O_WRONLY, mode);
        TRY(SYS_openat, AT_FDCWD, ".", O_TMPFILE | O_WRONLY, mode);
        TRY(SYS_mknodat, AT_FDCWD, "b", S_IFREG | mode, 0);
#ifdef __x86_64__
        TRY(SYS_chmod, "file", mode);
        TRY(SYS_open, "c", O_CREAT | O_WRONLY, mode);
        TRY(SYS_creat, "d", mode);
        TRY(SYS_mknod, "e", S_IFREG | mode, 0);
        TRY(SYS_chmod | 0x40000000, "file", mode);
#endif
    }
    // A mode that no file is made with does not count, nor do the other bits.
    if (syscall(SYS_openat, AT_FDCWD, "file", O_RDONLY, 04755) < 0 || fchmod(file, 01777) || fchmod(file, 0755)) bad = 2;
    return bad;
}
"#,
    );
    place.succeeds(&program);
    for command in ["chmod u+s file", "chmod 6755 file", "install -m 4755 file f", "cp file g && chmod g+s g"] {
        place.fails(command);
    }
    place.shell("cp -p /usr/bin/passwd h; cp /usr/bin/passwd i; python3 -c 'import os; os.chmod(\"file\", 0o4755)'");
    for file in fs::read_dir(&place.workspace).unwrap().flatten() {
        let mode = std::os::unix::fs::MetadataExt::mode(&file.metadata().unwrap());
        assert_eq!(mode & 0o6000, 0, "{file:?}");
    }
    place.succeeds("mkdir -m 755 folder && chmod -R u+rwX,go-w folder file && tar cf t.tar file && tar xf t.tar");
}

fn no_process_outlives_its_call() {
    let place = Place::new();
    let mark = mark(5);
    let text = place.succeeds(&format!(
        "(setsid sleep {mark} >/dev/null 2>&1 & disown) ; (setsid sh -c 'sleep {mark} & sleep {mark}' &) ; \
         nohup sleep {mark} >/dev/null 2>&1 & echo done"
    ));
    assert!(text.starts_with("done"), "{text}");
    assert_eq!(count(&mark), 0);
}

/// A service that is killed while its command runs.
fn service() {
    let mark = std::env::var("TEST_SERVICE").unwrap();
    Place::new().shell(&format!("setsid sleep {mark} & (setsid sleep {mark} &) ; echo $$ > started; sleep {mark}"));
}

fn no_process_outlives_the_service() {
    let mark = mark(6);
    let mut service = Command::new("/proc/self/exe")
        .args(["--exact", "service", "--nocapture"])
        .env("TEST_SERVICE", &mark)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    until("its processes run", || {
        assert!(service.try_wait().unwrap().is_none(), "the service ended");
        count(&format!("sleep\u{0}{mark}")) >= 3
    });
    service.kill().unwrap();
    service.wait().unwrap();
    // The end of all its processes: nobody has its output any more.
    let mut rest = String::new();
    service.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    until("none is left", || count(&mark) == 0);
}

fn a_fork_bomb_ends() {
    let place = Place::new();
    let program = place.compile(
        "bomb",
        "#include <unistd.h>\n#include <stdio.h>\nint main(void) { int n = 0; while (fork() >= 0) { if (++n > 1000000) break; }\n\
         pause(); }",
    );
    let (_, result) = place.call("shell", &json!({"command": program, "timeout_ms": 3000}));
    assert!(result.unwrap_err().to_string().contains("killed after"));
    assert_eq!(count("./bomb"), 0);
    let program = place.compile(
        "crowd",
        "#include <unistd.h>\n#include <stdio.h>\nint main(void) { int n = 0; for (; n < 4000; n++) { int pid = fork(); \
         if (pid < 0) break; if (!pid) { pause(); _exit(0); } } printf(\"%d\", n); }",
    );
    let processes: u32 = place.succeeds(&program).trim().parse().unwrap();
    assert!(processes < 2_048, "{processes} processes");
}

fn a_data_directory_is_hidden() {
    // The hidden folder lies in the workspace itself.
    let mut place = Place::new();
    place.workspace = place.folder.path().to_owned();
    if has_namespaces() {
        for command in ["cat data/token", "echo x > data/token", "rm -r data", "mv data other"] {
            place.fails(command);
        }
        assert_eq!(fs::read_to_string(place.folder.path().join("data/token")).unwrap(), "owner's\n");
    } else {
        assert!(place.plan(&json!({"command": "ls"})).is_err());
    }
}

/// `/dev/null` covers it. As root, a command changed the mode of the machine's.
fn a_hidden_file_leads_nowhere() {
    let place = Place::with_credentials();
    if !has_namespaces() {
        assert!(place.plan(&json!({"command": "ls"})).is_err());
        return;
    }
    let file = "cargo/credentials.toml";
    assert_eq!(place.succeeds(&format!("cat {file}; echo lost > {file}")), "");
    // To what they are: a command that may do that harms no other test.
    for command in ["chmod 666", "chown 0:0", "touch", "rm -f"] {
        place.fails(&format!("{command} {file}"));
    }
    assert_eq!(fs::read_to_string(place.workspace.join(file)).unwrap(), "owner's\n");
}

/// The user lets commands read all of it. Running servers of other projects have their tokens there.
fn a_home_folder_shows_no_secret() {
    let home = tempfile::tempdir_in("/var/tmp").unwrap();
    let put = |name: &str| {
        let path = home.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "owner's\n").unwrap();
        path
    };
    let secrets =
        [".local/share/meerkat/other-0123/token", ".ssh/id_ed25519", ".netrc", ".config/gh/hosts.yml"].map(put);
    let plain = put("notes/plain");
    let place = Place::reading(home.path());
    assert_eq!(place.succeeds(&format!("cat {}", plain.display())), "owner's\n");
    for secret in secrets {
        place.fails(&format!("cat {}", secret.display()));
    }
}
