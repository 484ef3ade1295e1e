"""Compiled kernels on disk: found again by other processes, and never a reason to fail."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mileage.kernels.machine import jit

# Says its answer, how many functions were compiled, and how many compiled functions were read from disk.
PROGRAM = """
from numba.core import event
from mileage.kernels.machine import jit

compiled = []
class Listener(event.Listener):
    def on_start(self, event):
        compiled.append(event)
    def on_end(self, event):
        pass
event.register("numba:compile", Listener())

@jit.inner
def square(x):
    return x * x

@jit.kernel
def add_squares(a, b):
    return square(a) + square(b)

print(add_squares(3.0, 4.0), len(compiled), sum(add_squares.stats.cache_hits.values()))
"""


def run_program(cache: Path) -> list[str]:
    environment = os.environ | {"MILEAGE_CACHE_DIR": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()


def twice(x: int) -> int:
    return 2 * x


def hits(key: str = "") -> int:
    """Compile or load `twice` as a new process would, check that it works, and say whether it was loaded."""
    dispatcher = jit.kernel(twice, key=key)
    assert dispatcher(21) == 42
    return sum(dispatcher.stats.cache_hits.values())


def files(cache: Path) -> list[Path]:
    return sorted(path for path in cache.rglob("*") if path.is_file())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(jit.CACHE_ENV, str(tmp_path))
    return tmp_path


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    # The kernel and the function inside it.
    assert run_program(tmp_path) == ["25.0", "2", "0"]
    assert len(files(tmp_path)) == 1
    assert run_program(tmp_path) == ["25.0", "0", "1"]


def test_another_key_is_another_kernel(cache: Path) -> None:
    assert [hits("a"), hits("a"), hits("b"), hits("b")] == [0, 1, 0, 1]
    assert len(files(cache)) == 2


def damage(content: bytes, how: str) -> bytes:
    middle = len(content) // 2
    return {
        "empty": b"",
        "truncated": content[:middle],
        "one bit": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "foreign": b"not a kernel at all",
        "pickle": pickle.dumps({"no": "kernel"}),
    }[how]


@pytest.mark.parametrize("how", ["empty", "truncated", "one bit", "foreign", "pickle"])
def test_a_damaged_file_is_compiled_again_and_replaced(cache: Path, how: str) -> None:
    assert hits() == 0
    (path,) = files(cache)
    path.write_bytes(damage(path.read_bytes(), how))
    assert hits() == 0
    assert files(cache) == [path]
    assert hits() == 1


def test_a_directory_that_cannot_be_made_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(jit.CACHE_ENV, str(tmp_path / "file"))
    assert [hits(), hits()] == [0, 0]


def test_a_file_that_cannot_be_written_whole_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert hits() == 0
    assert files(cache) == []


def test_whether_the_cache_is_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jit.CACHE_ENV, str(tmp_path / "new"))
    assert jit.cache_is_writable()
    assert files(tmp_path) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(jit.CACHE_ENV, str(tmp_path / "file"))
    assert not jit.cache_is_writable()


def test_the_directory_is_the_stamp_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jit.CACHE_ENV, str(tmp_path))
    assert jit.cache_dir() == tmp_path / "kernels" / jit.source_stamp()
    before = jit.source_stamp()
    monkeypatch.setattr(jit.numba, "__version__", "0.0.0")
    assert jit.source_stamp.__wrapped__() != before


def test_a_disabled_cache_neither_reads_nor_writes(cache: Path) -> None:
    dispatcher = jit.kernel(twice)
    dispatcher._cache.disable()
    assert dispatcher(21) == 42
    assert files(cache) == []
    dispatcher._cache.enable()
    assert hits() == 0
    assert hits() == 1


def test_an_inner_function_cannot_be_called_from_python() -> None:
    @jit.inner
    def one() -> int:
        return 1

    with pytest.raises(TypeError):
        one()


def test_garbage_waits_while_a_kernel_is_compiled(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    compile_core = jit._FunctionCompiler._compile_core

    def watched(self: Any, args: Any, return_type: Any) -> Any:
        seen.append(gc.isenabled())
        return compile_core(self, args, return_type)

    monkeypatch.setattr(jit._FunctionCompiler, "_compile_core", watched)
    assert hits() == 0
    assert (seen, gc.isenabled()) == ([False], True)
