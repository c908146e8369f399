//! Network of a session's commands: a namespace that has nothing but the loopback device.
//!
//! A process that makes a namespace is in it from then on, so a re-exec of this program makes it (`create`) and hands it
//! to the service, which holds it open and hands it to the keeper of each command. Never has a command with sockets the
//! network of the service: the entrance compares the two ([`Id`]).

use std::{
    fs::{self, File},
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{fs::MetadataExt as _, net::UnixStream},
    },
    process::{Command, Stdio},
};

use nix::{
    libc,
    sched::{CloneFlags, setns, unshare},
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketType, netlink::SocketAddrNetlink, recv, recvmsg, sendmsg, sendto, socket,
};

use super::{answers_in_time, program, users::with_users};
use crate::confine::NETWORK;

/// Number of the loopback device in each network.
const LOOPBACK: i32 = 1;
/// Bytes of a message that changes a device, with its header.
const LINK_BYTES: u32 = 32;
/// This process's network and, if it is not root's, the user namespace to which the network belongs.
const OWN: [&str; 2] = ["/proc/self/ns/net", "/proc/self/ns/user"];

/// Network of a session. It ends when it is not held and no process is in it.
#[derive(Debug)]
pub(crate) struct Network(Vec<OwnedFd>);

impl Network {
    /// Makes one. It blocks.
    pub(crate) fn make() -> Result<Self, String> {
        let failed = |error: io::Error| format!("a network for commands cannot be made: {error}");
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let mut command = Command::new(program().map_err(failed)?);
        command.arg(NETWORK).env_clear().stdin(Stdio::from(OwnedFd::from(theirs)));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().map_err(failed)?;
        // It holds the other end.
        drop(command);
        let network = match answers_in_time(&ours) {
            true => take(&ours),
            false => Err("a network for commands cannot be made in time".to_owned()),
        };
        // A process that is late has no reader, and ends.
        drop(ours);
        child.wait().map_err(failed)?;
        network
    }

    /// Puts it into the control socket of a keeper, which finds it there when it starts.
    pub(crate) fn send(&self, control: impl AsFd) -> io::Result<()> {
        let held: Vec<BorrowedFd<'_>> = self.0.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(OWN.len()))];
        let mut control_data = SendAncillaryBuffer::new(&mut space);
        control_data.push(SendAncillaryMessage::ScmRights(&held));
        // It needs a byte to travel with.
        sendmsg(control, &[IoSlice::new(b"n")], &mut control_data, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

/// Takes a network from a socket, and nothing of what follows. Instead of one there may be the reason why there is none.
fn take(socket: impl AsFd) -> Result<Network, String> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(OWN.len()))];
    let mut received = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(&socket, &mut [IoSliceMut::new(&mut byte)], &mut received, RecvFlags::CMSG_CLOEXEC)
        .map_err(|error| failed("be taken", error))?;
    let held = received.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(held) => Some(held),
        _ => None,
    });
    let held: Vec<OwnedFd> = held.flatten().collect();
    if held.is_empty() {
        return Err(failed("be taken", "the kernel gives none"));
    }
    Ok(Network(held))
}

/// Makes a network as the process that does nothing else, and hands it over by its standard input.
pub(crate) fn create() -> Result<u8, String> {
    let is_roots = unshare(CloneFlags::CLONE_NEWNET).is_ok();
    if !is_roots {
        with_users(CloneFlags::CLONE_NEWNET)?;
    }
    raise_loopback().map_err(|error| failed("be used", error))?;
    let own = OWN.iter().take(if is_roots { 1 } else { 2 });
    let held = own.map(|path| File::open(path).map(OwnedFd::from)).collect::<io::Result<_>>();
    let network = Network(held.map_err(|error| failed("be held", error))?);
    network.send(io::stdin()).map_err(|error| failed("be handed over", error))?;
    Ok(0)
}

/// Takes the network that the service put into the control socket of this keeper.
pub(super) fn given() -> Result<Network, String> {
    take(io::stdin())
}

impl Network {
    /// Joins it. Returns true if this process is in another user namespace from then on, with all rights in it.
    pub(super) fn join(self) -> Result<bool, String> {
        let (network, users) = self.0.split_first().ok_or_else(|| failed("be joined", "there is none"))?;
        for users in users {
            setns(users, CloneFlags::CLONE_NEWUSER).map_err(|error| failed("be joined", error))?;
        }
        setns(network, CloneFlags::CLONE_NEWNET).map_err(|error| failed("be joined", error))?;
        Ok(!users.is_empty())
    }
}

/// Tells networks apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id(u64, u64);

impl Id {
    /// Returns that of this process's network.
    pub(super) fn own() -> Result<Self, String> {
        let found = fs::metadata(OWN[0]).map_err(|error| failed("be told from others", error))?;
        Ok(Self(found.dev(), found.ino()))
    }
}

/// Switches on the loopback device of this process's network, which has `127.0.0.1` and `::1` from then on.
fn raise_loopback() -> Result<(), Box<dyn std::error::Error>> {
    let routes = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_ACK)?;
    let up = libc::IFF_UP.to_ne_bytes();
    let mut message = Vec::new();
    message.extend(LINK_BYTES.to_ne_bytes());
    message.extend(libc::RTM_NEWLINK.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    // The message has no number, and its sender no address; the device may be of any kind.
    message.extend([0; 12]);
    message.extend(LOOPBACK.to_ne_bytes());
    // The device's flags, and which of them change.
    message.extend([up, up].concat());
    sendto(&routes, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0; 64];
    recv(&routes, &mut answer, RecvFlags::empty())?;
    // Behind the header of an answer is the error, negative, or zero.
    let [_, _, _, _, error, ..] = answer.as_chunks::<4>().0 else { return Err("the kernel does not answer".into()) };
    match i32::from_ne_bytes(*error) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error.saturating_neg()).into()),
    }
}

fn failed(doing: &str, error: impl std::fmt::Display) -> String {
    format!("the network of the session cannot {doing}: {error}")
}
