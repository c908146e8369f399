//! Network of a session: its commands reach each other by `127.0.0.1` and `::1`, and nothing else.

use std::{
    fs,
    io::ErrorKind,
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    os::{
        fd::AsFd as _,
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr as UnixAddr, UnixListener},
    },
};

use libtest_mimic::Trial;
use meerkat_service::tool::Network;
use meerkat_testkit::{can_run, has_program, until};
use serde_json::json;

use super::{
    place::{Place, has_namespaces, has_networks},
    seen,
};

/// Answers each connection with its argument, on a port that it prints, or on one that it is given.
const SERVER: &str = "import socket, sys
family = socket.AF_INET6 if sys.argv[1] == '::1' else socket.AF_INET
server = socket.socket(family)
server.bind((sys.argv[1], int(sys.argv[2])))
server.listen()
print('port', server.getsockname()[1], flush=True)
while True:
    server.accept()[0].sendall(sys.argv[3].encode())
";
/// Prints what a server answers.
const CLIENT: &str = "import socket, sys
print(socket.create_connection((sys.argv[1], int(sys.argv[2]))).recv(64).decode())
";
/// Only connects: a server that it must not reach need not answer.
const CONNECTS: &str = "import socket, sys
socket.create_connection((sys.argv[1], int(sys.argv[2])))
";
/// A server and its client in one process.
const BOTH: &str = "import socket, sys, threading
family = socket.AF_INET6 if sys.argv[1] == '::1' else socket.AF_INET
server = socket.create_server((sys.argv[1], 0), family=family)
threading.Thread(target=lambda: server.accept()[0].sendall(b'answer'), daemon=True).start()
print(socket.create_connection(server.getsockname()[:2]).recv(64).decode())
";

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    let trials: [(&str, fn()); _] = [
        ("a_command_reaches_its_own_server", a_command_reaches_its_own_server),
        ("commands_of_a_session_reach_its_servers_and_no_others_do", commands_of_a_session),
        ("no_server_of_this_machine_is_reached_without_the_network", no_server_of_this_machine),
        ("a_command_that_is_given_this_machines_network_does_not_run", given_this_machines_network),
        ("no_socket_is_made_without_a_network_of_its_own", no_socket_without_a_network),
    ];
    // Its programs make the sockets.
    let has_python = can_run("python3", has_program("python3"));
    trials.into_iter().filter(move |_| has_python).map(|(name, trial)| {
        Trial::test(name, move || {
            trial();
            Ok(())
        })
    })
}

/// A place with the programs above.
fn place(network: Network) -> Place {
    let place = Place::with(network);
    for (name, text) in [("server.py", SERVER), ("client.py", CLIENT), ("connects.py", CONNECTS), ("both.py", BOTH)] {
        fs::write(place.workspace.join(name), text).unwrap();
    }
    place
}

fn a_command_reaches_its_own_server() {
    for network in [Network::Ask, Network::Deny] {
        for address in ["127.0.0.1", "::1"] {
            let (place, command) = (place(network), format!("python3 both.py {address}"));
            match has_networks() {
                true => assert_eq!(place.succeeds(&command), "answer\n", "{address}"),
                false => gets_no_socket(&place, &command),
            }
        }
    }
    if !has_networks() {
        return;
    }
    super::elsewhere("lose-networks", "a_command_reaches_its_own_server");
    // Programs that look for devices find it.
    let names = place(Network::Ask).succeeds("python3 -c 'import socket; print(socket.if_nameindex()[0])'");
    assert_eq!(names, "(1, 'lo')\n");
}

/// Where a session has no network, a command that makes a socket fails and is told why.
fn gets_no_socket(place: &Place, command: &str) {
    let text = place.fails(command);
    assert!(text.contains("Operation not permitted") && text.contains("The network is closed to commands"), "{text}");
    assert!(!text.contains("127.0.0.1 is of this session"), "{text}");
}

fn commands_of_a_session() {
    const NAME: &str = "commands_of_a_session_reach_its_servers_and_no_others_do";
    let mut place = place(Network::Ask);
    if !has_networks() {
        return gets_no_socket(&place, "python3 server.py 127.0.0.1 0 first");
    }
    super::elsewhere("lose-networks", NAME);
    let port = serve(&place, "job-1", 0, "first");
    let ask = format!("python3 client.py 127.0.0.1 {port}");
    assert_eq!(place.succeeds(&ask), "first\n", "a later command");
    place.session = 2;
    let text = place.fails(&ask);
    assert!(text.contains("Connection refused"), "{text}");
    assert_eq!(serve(&place, "job-1", port, "second"), port, "another session has the port too");
    assert_eq!(place.succeeds(&ask), "second\n");
    place.session = 1;
    assert_eq!(place.succeeds(&ask), "first\n");
    let text = place.fails(&format!("python3 server.py 127.0.0.1 {port} third"));
    assert!(text.contains("Address already in use"), "{text}");
}

/// Starts the server in the background, as the first such command of its session, and returns its port.
fn serve(place: &Place, id: &str, port: u16, answer: &str) -> u16 {
    let command = format!("python3 server.py 127.0.0.1 {port} {answer}");
    let (text, result) = place.call("shell", &json!({"command": command, "background": true}));
    assert!(result.is_ok() && text.starts_with(id), "{text}");
    let mut said = String::new();
    until("the server has its port", || {
        said.push_str(&place.call("shell_output", &json!({"id": id})).0);
        assert!(!said.contains("ended"), "{said}");
        said.contains("port ")
    });
    said.split_once("port ").unwrap().1.lines().next().unwrap().parse().unwrap()
}

/// Servers of this machine, and addresses behind it.
fn no_server_of_this_machine() {
    let listen = |address: IpAddr| {
        let listener = TcpListener::bind(SocketAddr::new(address, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    };
    let mut listeners = vec![listen("127.0.0.1".parse().unwrap()), listen("0.0.0.0".parse().unwrap())];
    if let Ok(listener) = TcpListener::bind("[::1]:0") {
        listener.set_nonblocking(true).unwrap();
        listeners.push(listener);
    }
    // The address that this machine has to others. Nothing is sent.
    let own = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    if let Ok(own) = own {
        listeners.push(listen(own.ip()));
    }
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    datagrams.set_nonblocking(true).unwrap();
    let name = format!("meerkat-test-{}", std::process::id());
    let by_name = UnixListener::bind_addr(&UnixAddr::from_abstract_name(&name).unwrap()).unwrap();
    by_name.set_nonblocking(true).unwrap();

    let place = place(Network::Deny);
    let mut commands: Vec<String> = listeners
        .iter()
        .map(|listener| listener.local_addr().unwrap())
        .map(|address| format!("python3 connects.py {} {}", address.ip(), address.port()))
        .collect();
    let port = datagrams.local_addr().unwrap().port();
    let send = |to: &str| {
        format!("python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b\"x\", {to})'")
    };
    commands.extend([
        // A datagram to nobody is lost without a word.
        send(&format!("(\"127.0.0.1\", {port})")) + " && false",
        send("(\"192.0.2.1\", 9)"),
        "python3 connects.py 192.0.2.1 9".to_owned(),
        "python3 connects.py 2001:db8::1 9".to_owned(),
        format!("python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"\\0{name}\")'"),
    ]);
    for command in &commands {
        place.fails(command);
    }
    let is_empty = |error: std::io::Error| error.kind() == ErrorKind::WouldBlock;
    assert!(listeners.iter().all(|listener| is_empty(listener.accept().unwrap_err())));
    assert!(is_empty(datagrams.recv(&mut [0]).unwrap_err()) && is_empty(by_name.accept().unwrap_err()));

    // With the network the same command reaches the same server.
    self::place(Network::Allow).succeeds(&commands[0]);
    assert!(listeners[0].accept().is_ok());
}

/// The keeper's task and its socket, as the service gives them, but with the network of the service itself.
fn given_this_machines_network() {
    let place = place(Network::Deny);
    let started = place.workspace.join("started");
    let mut job = seen::job(&place, "/bin/sh", "echo x > started", "session");
    job["confinement"]["git_guard"] = json!("namespace");
    let own = fs::File::open("/proc/self/ns/net").unwrap();
    let (output, told) = seen::keep(&job, Some(own.as_fd()));
    assert!(!output.status.success() && !started.exists(), "{told}");
    // Root may join its own network once more; nobody else may.
    let why = if rustix::process::geteuid().is_root() { "the network of the service" } else { "cannot" };
    assert!(told.contains(why), "{told}");
}

/// Where the kernel gives no network of its own, all is as without any: another run of this trial is there.
fn no_socket_without_a_network() {
    if has_networks() {
        return super::elsewhere("lose-networks", "no_socket_is_made_without_a_network_of_its_own");
    }
    let place = place(Network::Deny);
    for family in ["AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK"] {
        for kind in ["SOCK_STREAM", "SOCK_DGRAM"] {
            let code = format!("import socket; socket.socket(socket.{family}, socket.{kind})");
            let text = place.fails(&format!("python3 -c '{code}'"));
            assert!(text.contains("Operation not permitted"), "{family} {kind}: {text}");
        }
    }
    // If the rest holds, commands need not ask.
    assert_eq!(place.plan(&json!({"command": "ls"})).unwrap().always_asks, !has_namespaces());
}
