from __future__ import annotations

import os
import subprocess
import sys

from mileage.ledger.liveness import host_name, is_alive, own_token, process_token, stale_after


def test_this_process_is_alive_and_known_by_its_token() -> None:
    assert own_token() == process_token(os.getpid())
    assert is_alive(host_name(), os.getpid(), own_token()) is True


def test_the_same_id_with_another_token_is_another_process() -> None:
    assert is_alive(host_name(), os.getpid(), "boot:1") is False


def test_a_dead_process_is_dead_even_before_its_parent_has_noticed() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    token = process_token(child.pid)
    assert token is not None
    assert is_alive(host_name(), child.pid, token) is True
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and a zombie
    assert is_alive(host_name(), child.pid, token) is False
    child.communicate()
    assert process_token(child.pid) is None


def test_a_process_of_another_host_cannot_be_asked() -> None:
    assert is_alive("elsewhere", os.getpid(), own_token()) is None


def test_a_process_of_another_namespace_or_boot_cannot_be_asked_whatever_its_host_is_called() -> None:
    boot, start, namespace = own_token().split(":")
    assert is_alive(host_name(), os.getpid(), f"{boot}:{start}:1") is None
    assert is_alive(host_name(), os.getpid(), f"other:{start}:{namespace}") is None
    assert is_alive(host_name(), os.getpid(), f"{boot}:1:{namespace}") is False


def test_a_token_of_before_has_no_namespace() -> None:
    boot, start, _ = own_token().split(":")
    assert is_alive(host_name(), os.getpid(), f"{boot}:{start}") is True


def test_nobody_waits_as_long_for_a_neighbour_as_for_another_host() -> None:
    assert stale_after(host_name()) < stale_after("elsewhere")
