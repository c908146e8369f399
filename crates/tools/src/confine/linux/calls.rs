//! System calls that a command may not make, by seccomp.
//!
//! The list names what is refused; all else is allowed, because the calls that a compiler makes are not known. Other
//! architectures' calls end the process.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

type Failure = Box<dyn std::error::Error>;

/// Calls that are refused whatever their arguments.
const REFUSED: &[i64] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    // A ring's operations pass no filter.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // The kernel and the machine.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// Bits of a mode by which a program gets the rights of its file's owner or group.
const SET_ID: [u64; 2] = [0o4000, 0o2000];
/// Calls that set a mode, and which argument it is: a program with such a bit would give the user's rights to everybody,
/// also outside of the confinement. A new folder gets no such bit.
const MODES: &[(i64, u8)] = &[
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (libc::SYS_fchmodat2, 2),
    (libc::SYS_mknodat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
];
/// Calls that may make a file, and which argument their flags are. The mode follows.
const OPENING: &[(i64, u8)] = &[
    (libc::SYS_openat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1),
];
/// Bits of a socket's kind.
const SOCKET_KINDS: u64 = 0xF;

/// Numbers that only the x32 calls of x86-64 have: ioctl, ptrace, kexec_load, process_vm_readv, process_vm_writev,
/// and the four that take and send messages.
#[cfg(target_arch = "x86_64")]
const X32_ONLY: &[i64] = &[514, 521, 528, 539, 540];
/// Bit of an x32 call's number.
#[cfg(target_arch = "x86_64")]
const X32: i64 = 0x4000_0000;

/// Refuses the calls to this process and its children, and every socket unless `has_sockets`.
pub(super) fn apply(has_sockets: bool) -> Result<(), String> {
    let filters = filters(has_sockets).map_err(|error| format!("seccomp does not confine the command: {error}"))?;
    for filter in filters {
        seccompiler::apply_filter(&filter).map_err(|error| format!("seccomp does not confine the command: {error}"))?;
    }
    Ok(())
}

fn filters(has_sockets: bool) -> Result<[seccompiler::BpfProgram; 2], Failure> {
    let mut refused: BTreeMap<i64, Vec<SeccompRule>> = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    refused.insert(libc::SYS_socket, sockets(has_sockets)?);
    refused.insert(libc::SYS_socketpair, pairs()?);
    for (call, argument) in MODES {
        refused.insert(
            *call,
            SET_ID.map(|bit| rule(&[(*argument, has(bit), bit)])).into_iter().collect::<Result<_, _>>()?,
        );
    }
    for (call, flags) in OPENING {
        refused.insert(*call, set_id_of_new(*flags)?);
    }
    let commands = [libc::TIOCSTI, libc::TIOCLINUX].map(|command| rule(&[(1, SeccompCmpOp::Eq, command)]));
    refused.insert(libc::SYS_ioctl, commands.into_iter().collect::<Result<_, _>>()?);
    let user = u64::from(libc::CLONE_NEWUSER.unsigned_abs());
    refused.insert(libc::SYS_clone, vec![rule(&[(0, SeccompCmpOp::MaskedEq(user), user)])?]);
    #[cfg(target_arch = "x86_64")]
    {
        let twins: Vec<_> = refused.iter().map(|(call, rules)| (call | X32, rules.clone())).collect();
        refused.extend(twins);
        refused.extend(X32_ONLY.iter().map(|call| (call | X32, Vec::new())));
    }
    // Their flags and modes are out of a filter's sight; programs then take `clone` and `openat`.
    let absent = BTreeMap::from([(libc::SYS_clone3, Vec::new()), (libc::SYS_openat2, Vec::new())]);
    Ok([compiled(refused, libc::EPERM)?, compiled(absent, libc::ENOSYS)?])
}

/// Rules for `socket`: no rule refuses every call.
fn sockets(has_sockets: bool) -> Result<Vec<SeccompRule>, Failure> {
    if !has_sockets {
        return Ok(Vec::new());
    }
    // A network does not bound sockets that are files, so those of this machine's services stay closed: docker, the session bus, the ssh agent.
    let (v4, v6, links) = (family(libc::AF_INET), family(libc::AF_INET6), family(libc::AF_NETLINK));
    let other = rule(&[(0, SeccompCmpOp::Ne, v4), (0, SeccompCmpOp::Ne, v6), (0, SeccompCmpOp::Ne, links)])?;
    let not_routes = (2, SeccompCmpOp::Ne, family(libc::NETLINK_ROUTE));
    Ok(vec![other, rule(&[(0, SeccompCmpOp::Eq, links), not_routes])?])
}

/// Rules for `socketpair`: only pairs that stay connected, of streams or of packets in order, as compilers use them to
/// start programs. A socket for datagrams reaches by its path every service of this machine.
fn pairs() -> Result<Vec<SeccompRule>, Failure> {
    let other = rule(&[(0, SeccompCmpOp::Ne, family(libc::AF_UNIX))])?;
    // The flags beside the kind of socket do not count.
    let connected = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET].map(family);
    let kinds = (0..=SOCKET_KINDS).filter(|kind| !connected.contains(kind));
    let kinds = kinds.map(|kind| rule(&[(1, SeccompCmpOp::MaskedEq(SOCKET_KINDS), kind)]));
    std::iter::once(Ok(other)).chain(kinds).collect()
}

/// Rules for a call that may make a file: its mode counts only then.
fn set_id_of_new(flags: u8) -> Result<Vec<SeccompRule>, Failure> {
    let made = [libc::O_CREAT, libc::O_TMPFILE & !libc::O_DIRECTORY].map(family);
    let pairs = made.into_iter().flat_map(|made| SET_ID.map(|bit| (made, bit)));
    pairs.map(|(made, bit)| rule(&[(flags, has(made), made), (flags + 1, has(bit), bit)])).collect()
}

/// Compares only these bits.
const fn has(bits: u64) -> SeccompCmpOp {
    SeccompCmpOp::MaskedEq(bits)
}

fn family(number: i32) -> u64 {
    u64::from(number.unsigned_abs())
}

fn rule(conditions: &[(u8, SeccompCmpOp, u64)]) -> Result<SeccompRule, Failure> {
    let conditions = conditions.iter().cloned();
    let conditions = conditions.map(|(argument, operator, value)| {
        // The kernel reads 32 bits of these arguments.
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
    });
    Ok(SeccompRule::new(conditions.collect::<Result<_, _>>()?)?)
}

fn compiled(rules: BTreeMap<i64, Vec<SeccompRule>>, errno: i32) -> Result<seccompiler::BpfProgram, Failure> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let action = SeccompAction::Errno(errno.unsigned_abs());
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, action, arch)?.try_into()?)
}
