"""The order of all benchmarks, without running any."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import run_all


def test_every_script_exists_and_the_readme_comes_last() -> None:
    for peer in (None, "peers/bin/python"):
        found = run_all.commands("python", peer)
        assert list(found)[-1] == "README"
        assert ("ppo_cartpole" in found) == (peer is not None)
        for command in found.values():
            assert command[1] == "-m" or Path(command[1]).is_file()
    assert "peers/bin/python" in found["bench"]
    assert "peers/bin/python" in found["env_step"]


def test_a_failure_does_not_stop_the_others() -> None:
    ran: list[Sequence[str]] = []

    def call(command: Sequence[str]) -> int:
        ran.append(command)
        return 1 if command == ["b"] else 0

    assert run_all.run_all({"a": ["a"], "b": ["b"], "c": ["c"]}, call) == ["b"]
    assert ran == [["a"], ["b"], ["c"]]
