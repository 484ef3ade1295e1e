"""Checkpoint files: whole or not at all, and never trusted."""

from __future__ import annotations

import errno
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import mileage
from mileage.errors import CheckpointError, UsageError
from mileage.training import checkpoints

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([2**63], np.uint64)}


def one_sentence(error: BaseException, path: Path) -> str:
    text = str(error)
    assert str(path) in text
    assert "\n" not in text
    return text


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "directory" / "x.safetensors"
    checkpoints.write(path, ARRAYS, {"steps": 3, "text": "ü", "nested": {"inf": float("inf")}})
    arrays, metadata = checkpoints.read(path)
    assert metadata == {"format": checkpoints.FORMAT, "steps": 3, "text": "ü", "nested": {"inf": float("inf")}}
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype


def test_any_safetensors_reader_can_read_it(tmp_path: Path) -> None:
    checkpoints.write(tmp_path / "x", ARRAYS, {})
    np.testing.assert_array_equal(load_file(tmp_path / "x")["a"], ARRAYS["a"])


@pytest.mark.parametrize("stage", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, error: BaseException
) -> None:
    path = tmp_path / "x.safetensors"
    checkpoints.write(path, ARRAYS, {"steps": 1})
    before = path.read_bytes()

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(*((os, "fsync") if stage == "fsync" else (Path, "replace")), fail)
    with pytest.raises((CheckpointError, KeyboardInterrupt)) as caught:
        checkpoints.write(path, ARRAYS, {"steps": 2})
    if isinstance(error, OSError):
        assert str(caught.value) == f"checkpoint {path} cannot be written: No space left on device"
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_grows_too_large_leaves_the_old_one(tmp_path: Path) -> None:
    """As on a full disk, the system refuses in the middle of the file."""
    path = tmp_path / "x.safetensors"
    checkpoints.write(path, ARRAYS, {"steps": 1})
    before = path.read_bytes()
    code = (
        "import resource, signal, sys; from pathlib import Path; import numpy as np\n"
        "from mileage.training import checkpoints\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "try: checkpoints.write(Path(sys.argv[1]), {'a': np.zeros(1_000_000)}, {})\n"
        "except checkpoints.CheckpointError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == f"checkpoint {path} cannot be written: File too large\n"
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "x.safetensors", tmp_path / ("x" * 300), tmp_path):
        with pytest.raises(CheckpointError, match="cannot be written") as caught:
            checkpoints.write(path, ARRAYS, {})
        one_sentence(caught.value, path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def header(path: Path, text: Any) -> None:
    save_file(ARRAYS, path, metadata={"mileage": text if isinstance(text, str) else json.dumps(text)})


def cut(path: Path) -> None:
    checkpoints.write(path, ARRAYS, {})
    path.write_bytes(path.read_bytes()[:-5])


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("not a checkpoint" * 100),
    "pickle": lambda path: path.write_bytes(pickle.dumps({"a": 1})),
    "huge header": lambda path: path.write_bytes((2**62).to_bytes(8, "little") + b"{}"),
    "truncated": cut,
    "foreign safetensors": lambda path: save_file(ARRAYS, path),
    "no JSON": lambda path: header(path, "{"),
    "deep JSON": lambda path: header(path, "[" * 100_000),
    "list": lambda path: header(path, [1, 2]),
    "no format": lambda path: header(path, {"steps": 1}),
    "format is text": lambda path: header(path, {"format": "1"}),
    "half precision": lambda path: bfloat16(path),
}


def bfloat16(path: Path) -> None:
    """A tensor type that NumPy does not have."""
    layout = {
        "__metadata__": {"mileage": '{"format": 1}'},
        "a": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]},
    }
    text = json.dumps(layout).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0\0")


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_or_foreign_file(tmp_path: Path, how: str) -> None:
    path = tmp_path / "x.safetensors"
    DAMAGE[how](path)
    for read in (checkpoints.read, mileage.load, mileage.PPO.load):
        with pytest.raises(CheckpointError, match="is damaged or not a mileage checkpoint") as caught:
            read(path)
        one_sentence(caught.value, path)


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "exploded",)

    (tmp_path / "x").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError):
        mileage.load(tmp_path / "x")
    assert not (tmp_path / "exploded").exists()


def test_a_missing_file(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "x", "does not exist"), (tmp_path, "holds no checkpoint.safetensors")):
        with pytest.raises(CheckpointError, match=rf" {why}$") as caught:
            checkpoints.read(path)
        one_sentence(caught.value, path)


def test_a_newer_format(tmp_path: Path) -> None:
    path = tmp_path / "x"
    header(path, {"format": 99})
    with pytest.raises(CheckpointError, match=r"has format 99, this version reads up to 1: upgrade mileage$"):
        checkpoints.read(path)


def test_restoring_copies_all_or_nothing() -> None:
    live = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(1, np.uint64)}
    path = Path("x")
    for name, wrong, message in (
        ("b", None, "array 'b' is missing"),
        ("b", np.zeros(2, np.uint64), r"array 'b' is uint64 of shape \(2,\), not uint64 of shape \(1,\)"),
        ("b", np.zeros(1, np.int64), r"array 'b' is int64 of shape \(1,\), not uint64 of shape \(1,\)"),
    ):
        arrays = {key: value for key, value in {**ARRAYS, name: wrong}.items() if value is not None}
        with pytest.raises(CheckpointError, match=rf"^checkpoint x does not fit: {message}$"):
            checkpoints.restore(live, arrays, path)
        assert not live["a"].any()
    checkpoints.restore(live, ARRAYS, path)
    np.testing.assert_array_equal(live["a"], ARRAYS["a"])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "x.safetensors"
    with mileage.PPO("CartPole-v1", preset="none", n_envs=2, n_steps=4, hidden=(3,)) as agent:
        agent.learn(8, panel=agent.default_panel(episodes=1))
        agent.save(path)
    return path


def forged(saved: Path, path: Path, **changes: Any) -> Path:
    """A copy of a good checkpoint with some of its metadata or arrays changed; None removes an entry."""
    arrays, metadata = checkpoints.read(saved)
    for name, value in changes.items():
        place: dict[str, Any] = arrays if name in arrays else metadata
        if value is None:
            del place[name]
        else:
            place[name] = value
    checkpoints.write(path, arrays, metadata)
    return path


HOSTILE: dict[str, dict[str, Any]] = {
    "no seed": {"seed": None},
    "held-out seed": {"seed": 2**31},
    "seed is text": {"seed": "0"},
    "no limit": {"obs_limit": None},
    "limit is text": {"obs_limit": "wide"},
    "infinite steps": {"steps": float("inf")},
    "steps is a list": {"steps": [1]},
    "config is text": {"config": "{}"},
    "unknown hyperparameter": {"config": {"learning_rat": 1.0}},
    "bad hyperparameter": {"config": {"gamma": 7.0}},
    "hidden is text": {"config": {"hidden": "64"}},
    "other shape": {"config": {"hidden": [4]}},
    "endless network": {"config": {"hidden": [10**15]}},
    "environment is a number": {"env": 7},
    "environment is nothing known": {"env": "NoSuchEnv-v9"},
    "other environment": {"env": "Pendulum-v1"},
    "counters are text": {"counters": "many"},
    "counter is text": {"counters": {"iterations": "many", "adam_steps": 1}},
    "bad target": {"target": "all of it"},
    "parameters missing": {"params": None},
    "parameters cut": {"params": np.zeros(3, np.float32)},
    "parameters double": {"params": np.zeros(33)},
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_forged_checkpoint_is_refused_when_it_is_read(saved: Path, tmp_path: Path, how: str) -> None:
    path = forged(saved, tmp_path / "x", **HOSTILE[how])
    with pytest.raises(CheckpointError) as caught:
        mileage.load(path)
    one_sentence(caught.value, path)


LATER: dict[str, dict[str, Any]] = {
    "order beyond the samples": {"order": np.full(8, 10**12)},
    "order twice the same": {"order": np.zeros(8, np.int64)},
    "negative counter": {"counters": {"iterations": 1, "adam_steps": -1}},
    "counter missing": {"counters": {"iterations": 1}},
    "environment state cut": {"env_state": np.zeros((1, 4), np.float32)},
    "optimizer missing": {"adam_mean": None},
}


@pytest.mark.parametrize("how", LATER)
def test_a_forged_checkpoint_is_refused_before_training_goes_on(saved: Path, tmp_path: Path, how: str) -> None:
    path = forged(saved, tmp_path / "x", **LATER[how])
    agent = mileage.load(path)
    for _ in range(2):
        with pytest.raises(CheckpointError) as caught:
            agent.learn(8)
        one_sentence(caught.value, path)


@pytest.mark.parametrize(
    ("env", "kwargs"), [("os:mkdir", {"path": "PLACE"}), ("EVIL.py:Env", {}), ("pathlib:Path.cwd", {})]
)
def test_a_checkpoint_runs_no_code(saved: Path, tmp_path: Path, env: str, kwargs: dict[str, str]) -> None:
    place = tmp_path / "done"
    evil = tmp_path / "evil.py"
    evil.write_text(f"import os; os.mkdir({str(place)!r})")
    env = env.replace("EVIL.py", str(evil))
    path = forged(saved, tmp_path / "x", env=env, env_kwargs={key: str(place) for key in kwargs})
    with pytest.raises(CheckpointError, match="names code as its environment, which is not run on its word"):
        mileage.load(path)
    assert not place.exists()


def test_the_wrong_algorithm(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r" is of algorithm 'ppo', not 'a2c'$"):
        mileage.A2C.load(saved)
    for name in ("dqqn", ["ppo"], None):
        path = forged(saved, tmp_path / "x", algorithm=name)
        with pytest.raises(CheckpointError, match="which this version does not have"):
            mileage.load(path)


def test_a_good_checkpoint_is_read(saved: Path) -> None:
    agent = mileage.load(saved)
    assert isinstance(agent, mileage.PPO)
    assert agent.steps == 8
    with pytest.raises(ValueError, match=r"^threads must be at least 1"):
        mileage.load(saved, threads=0)


@pytest.mark.parametrize("path", [None, 3, "", ["a"]])
def test_what_is_no_path_is_a_sentence(path: Any) -> None:
    agent = mileage.PPO("CartPole-v1", threads=1)
    for attempt in (mileage.load, mileage.PPO.load, agent.save, agent.export):
        with pytest.raises(UsageError, match="path must be the path of a checkpoint"):
            attempt(path)


def test_an_agent_shows_what_it_is() -> None:
    assert repr(mileage.PPO("CartPole-v1", seed=3, threads=1)) == "<PPO on CartPole-v1, seed 3, 0 steps>"
