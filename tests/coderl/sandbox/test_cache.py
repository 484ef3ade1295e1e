from __future__ import annotations

import os
from pathlib import Path

import pytest

from mileage.coderl.cache import ResultCache, context_key, machine_rows
from mileage.coderl.patching import PatchVerdict


def test_a_verdict_of_tests_is_kept_when_it_has_been_seen_often_enough() -> None:
    cache = ResultCache(confirmations=2)
    cache.put("k", PatchVerdict.PASS, "a")
    assert cache.get("k") is None
    cache.put("k", PatchVerdict.PASS, "b")
    assert cache.get("k") == (PatchVerdict.PASS, "b")


def test_two_different_verdicts_are_never_kept(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path / "c.db", confirmations=2)
    for verdict in (PatchVerdict.TEST_FAILURE, PatchVerdict.PASS, PatchVerdict.PASS, PatchVerdict.PASS):
        cache.put("k", verdict, "")
    assert cache.get("k") is None
    cache.close()
    assert ResultCache(tmp_path / "c.db", confirmations=2).get("k") is None


def test_a_compiler_says_the_same_thing_twice() -> None:
    cache = ResultCache(confirmations=3)
    cache.put("k", PatchVerdict.COMPILE_ERROR, "error: \udcff")
    assert cache.get("k") == (PatchVerdict.COMPILE_ERROR, "error: \\udcff")


@pytest.mark.parametrize("verdict", [PatchVerdict.INFRA_ERROR, PatchVerdict.TIMEOUT, PatchVerdict.KILLED])
def test_what_the_machine_had_a_part_in_is_not_kept(verdict: PatchVerdict) -> None:
    cache = ResultCache()
    cache.put("k", verdict, "")
    assert cache.get("k") is None


def test_the_context_knows_a_replaced_tool_by_more_than_its_version(tmp_path: Path) -> None:
    tool = tmp_path / "cc"
    tool.write_text("#!/bin/sh\necho 1.0\n")
    tool.chmod(0o755)
    env = {"PATH": str(tmp_path)}
    before = machine_rows([("cc", "--version")], env)
    tool.write_text("#!/bin/sh\necho 1.0 \n")
    os.utime(tool, (1, 1))
    after = machine_rows([("cc", "--version")], env)
    assert before["tool.cc"] != after["tool.cc"]
    assert context_key("r", [], {}, before) != context_key("r", [], {}, after)
