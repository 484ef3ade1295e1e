"""The filter, run by an interpreter of its few instructions: what each call is answered with."""

from __future__ import annotations

import errno
import struct

import pytest

from mileage.coderl.sandbox import seccomp

ALLOWED = 0


def answer(machine: str, number: int, argument: int = 0, arch: int | None = None, *, with_memfd: bool = True) -> int:
    """The error that the filter gives a call, 0 for none."""
    data = struct.pack(
        "=IIQQQQQQQ", number, seccomp.AUDIT_ARCH[machine] if arch is None else arch, 0, argument, *[0] * 5
    )
    code = list(struct.iter_unpack("=HBBI", seccomp.program(machine, with_memfd=with_memfd)))
    accumulator = position = 0
    while True:
        operation, if_true, if_false, value = code[position]
        position += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif operation == 0x06:
            return ALLOWED if value == 0x7FFF0000 else value & 0xFFFF
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[operation]
            position += if_true if holds else if_false


@pytest.mark.parametrize("machine", list(seccomp.AUDIT_ARCH))
def test_what_a_build_needs_is_allowed_and_the_rest_is_refused(machine: str) -> None:
    column = list(seccomp.AUDIT_ARCH).index(machine)
    for numbers in seccomp.REFUSED.values():
        assert answer(machine, numbers[column]) == errno.EPERM
    for numbers in seccomp.ABSENT.values():
        assert answer(machine, numbers[column]) == errno.ENOSYS
    # read, write, close, openat, execve, mmap, futex, ptrace: on both machines among the first three hundred.
    usual = {"x86_64": (0, 1, 3, 257, 59, 9, 202, 101), "aarch64": (63, 64, 57, 56, 221, 222, 98, 117)}[machine]
    assert {answer(machine, number) for number in usual} == {ALLOWED}


@pytest.mark.parametrize("machine", list(seccomp.AUDIT_ARCH))
def test_clone_may_start_threads_but_no_namespace(machine: str) -> None:
    clone = seccomp.CLONE[list(seccomp.AUDIT_ARCH).index(machine)]
    threads = 0x3D0F00
    assert answer(machine, clone, threads) == ALLOWED
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer(machine, clone, threads | flag) == errno.EPERM


@pytest.mark.parametrize("machine", list(seccomp.AUDIT_ARCH))
def test_sockets_are_of_families_that_namespaces_contain(machine: str) -> None:
    socket = seccomp.SOCKET[list(seccomp.AUDIT_ARCH).index(machine)]
    allowed = {family for family in range(46) if answer(machine, socket, family) == ALLOWED}
    assert allowed == {1, 2, 10, 16}
    assert answer(machine, socket, 40) == errno.EAFNOSUPPORT  # AF_VSOCK


def test_other_call_tables_are_closed() -> None:
    i386 = 0x40000003
    assert answer("x86_64", 1, arch=i386) == errno.ENOSYS
    assert answer("x86_64", 0x40000000 | 1) == errno.ENOSYS


def test_memory_files_go_where_nothing_counts_them() -> None:
    assert answer("x86_64", 319) == ALLOWED
    assert answer("x86_64", 319, with_memfd=False) == errno.ENOSYS
