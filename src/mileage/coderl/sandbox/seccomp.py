"""A filter of system calls that neither a compiler nor a test needs, as a BPF program made here and kept by the kernel.

What it takes away: new namespaces and mounts (a nested user namespace would bring its own, unlimited, file systems),
loading code into the kernel, keys, clocks, raw performance counters, io_uring (whose work no filter sees), and sockets
that do not belong to the network namespace, such as the one to the hypervisor. It costs nanoseconds per call.

Part of the launcher: the standard library alone.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000
# From linux/sched.h: every flag that makes a namespace; CLONE_NEWTIME is within the signal byte for clone.
NAMESPACE_FLAGS = 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000 | 0x00020000
# AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: what namespaces contain.
SOCKET_FAMILIES = (1, 2, 10, 16)

# System call numbers, x86_64 and aarch64; those from 424 on are the same everywhere.
REFUSED = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "vhangup": (153, 58),
    "lookup_dcookie": (212, 18),
    "memfd_secret": (447, 447),
}
# Answered as by an older kernel, so that programs take the older way.
ABSENT = {
    "clone3": (435, 435),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
MEMFD_CREATE = (319, 279)
CLONE, SOCKET = (56, 220), (41, 198)

# linux/bpf_common.h and linux/seccomp.h
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16


def program(machine: str, *, with_memfd: bool = True) -> bytes:
    """The filter for a machine, as `struct sock_filter` entries."""
    column = list(AUDIT_ARCH).index(machine)
    code: list[tuple[int, int, int, int]] = []

    def refuse_if(operation: int, value: int, error: int) -> None:
        code.append((operation, 0, 1, value))
        code.append((_RETURN, 0, 0, _ERRNO | error))

    code.append((_LOAD, 0, 0, _ARCH))
    code.append((_EQUAL, 1, 0, AUDIT_ARCH[machine]))
    code.append((_RETURN, 0, 0, _ERRNO | errno.ENOSYS))
    code.append((_LOAD, 0, 0, _NUMBER))
    refuse_if(_AT_LEAST, X32_BIT, errno.ENOSYS)
    for numbers in REFUSED.values():
        refuse_if(_EQUAL, numbers[column], errno.EPERM)
    for numbers in (*ABSENT.values(), *(() if with_memfd else (MEMFD_CREATE,))):
        refuse_if(_EQUAL, numbers[column], errno.ENOSYS)
    # clone with a flag that makes a namespace
    code.append((_EQUAL, 0, 4, CLONE[column]))
    code.append((_LOAD, 0, 0, _FIRST_ARGUMENT))
    refuse_if(_ANY_BIT, NAMESPACE_FLAGS, errno.EPERM)
    code.append((_RETURN, 0, 0, _ALLOW))
    # socket of a family that no namespace contains
    code.append((_EQUAL, 0, len(SOCKET_FAMILIES) + 2, SOCKET[column]))
    code.append((_LOAD, 0, 0, _FIRST_ARGUMENT))
    for position, family in enumerate(SOCKET_FAMILIES):
        code.append((_EQUAL, len(SOCKET_FAMILIES) - position, 0, family))
    code.append((_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT))
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *entry) for entry in code)


def install(*, with_memfd: bool = True) -> bool:
    """Filter the calls of this process and all it starts, for good; False where this machine is not known."""
    machine = os.uname().machine
    if machine not in AUDIT_ARCH:
        return False
    entries = program(machine, with_memfd=with_memfd)
    buffer = ctypes.create_string_buffer(entries, len(entries))
    header = struct.pack("HxxxxxxP", len(entries) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.create_string_buffer(header, len(header)), 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp filter: {os.strerror(number)}")
    return True
