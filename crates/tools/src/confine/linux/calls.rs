//! System calls that a command may not make, by seccomp.
//!
//! The list names what is refused; all else is allowed, because nobody knows which calls a compiler makes. Other
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

/// Numbers that only the x32 calls of x86-64 have: ioctl, ptrace, kexec_load, process_vm_readv, process_vm_writev,
/// and the four that take and send messages.
#[cfg(target_arch = "x86_64")]
const X32_ONLY: &[i64] = &[514, 521, 528, 539, 540];
/// Bit of an x32 call's number.
#[cfg(target_arch = "x86_64")]
const X32: i64 = 0x4000_0000;

/// Refuses the calls to this process and its children; sockets too, if the network is closed.
pub(super) fn apply(network: bool) -> Result<(), String> {
    let filters = filters(network).map_err(|error| format!("seccomp does not confine the command: {error}"))?;
    for filter in filters {
        seccompiler::apply_filter(&filter).map_err(|error| format!("seccomp does not confine the command: {error}"))?;
    }
    Ok(())
}

fn filters(network: bool) -> Result<[seccompiler::BpfProgram; 2], Failure> {
    let mut refused: BTreeMap<i64, Vec<SeccompRule>> = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    refused.insert(libc::SYS_socket, sockets(network)?);
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
    // Its flags are out of a filter's sight; the C library then takes `clone`.
    let absent = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    Ok([compiled(refused, libc::EPERM)?, compiled(absent, libc::ENOSYS)?])
}

/// Rules for `socket`: no rule refuses every call.
fn sockets(network: bool) -> Result<Vec<SeccompRule>, Failure> {
    if !network {
        return Ok(Vec::new());
    }
    // Sockets of this machine's services stay closed with the network too: docker, the session bus, the ssh agent.
    let (v4, v6, links) = (family(libc::AF_INET), family(libc::AF_INET6), family(libc::AF_NETLINK));
    let other = rule(&[(0, SeccompCmpOp::Ne, v4), (0, SeccompCmpOp::Ne, v6), (0, SeccompCmpOp::Ne, links)])?;
    let not_routes = (2, SeccompCmpOp::Ne, family(libc::NETLINK_ROUTE));
    Ok(vec![other, rule(&[(0, SeccompCmpOp::Eq, links), not_routes])?])
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
