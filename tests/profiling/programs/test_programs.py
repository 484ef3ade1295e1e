"""Real programs, watched as they are: planted slowness is named by file and line, and nothing else changes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mileage
from extras import TORCH

SOURCE = str(Path(mileage.__file__).parents[1])
LOOP = """\
import os, sys, time
import gymnasium as gym
import numpy as np

PLANT = os.environ.get("PLANT", "")


class Walk(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if PLANT == "reset":
            time.sleep(0.1)  # plant: reset
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if PLANT == "step":
            time.sleep(0.01)  # plant: step
        if PLANT == "fails" and self.steps == 5:
            raise RuntimeError("no more")
        self.steps += 1
        return self.np_random.normal(size=2).astype(np.float32), 1.0, self.steps >= 10, False, {}


def log_figures(number):
    if PLANT == "logger":
        time.sleep(0.1)  # plant: logger


def callback(number):
    if PLANT == "callback":
        time.sleep(0.01)  # plant: callback


def train(num_envs=2, total=100):
    envs = gym.vector.SyncVectorEnv([Walk for _ in range(num_envs)])
    obs, _ = envs.reset(seed=1)
    checksum = 0.0
    for number in range(total):
        obs, reward, terminated, truncated, _ = envs.step(np.ones(num_envs, np.int64))
        checksum += float(obs.sum())
        callback(number)
        if number % 10 == 0:
            log_figures(number)
    print(f"checksum {checksum!r} {Walk.step.__code__.co_firstlineno} {sorted(sys.path[:1])}")


if __name__ == "__main__":
    train()
    sys.exit(3)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(LOOP)
    return tmp_path


def profiled(
    *program: str, plant: str = "", **variables: str
) -> tuple[dict[str, Any], subprocess.CompletedProcess[bytes]]:
    code = "import sys; sys.path[:0] = [sys.argv.pop(1)]; from mileage.cli import main; main()"
    ours = [
        sys.executable,
        "-c",
        code,
        SOURCE,
        "profile",
        "--no-ledger",
        "--json",
        "--out",
        "found.json",
        "--",
        *program,
    ]
    environment = {**os.environ, "PLANT": plant, **variables}
    if "PYTHONPATH" not in variables:
        environment.pop("PYTHONPATH", None)
    done = subprocess.run(ours, env=environment, capture_output=True, check=False)
    assert Path("found.json").is_file(), done.stderr.decode()
    text = Path("found.json").read_text()
    assert text, done.stderr.decode()
    return json.loads(text), done


def marked(plant: str) -> int:
    return next(number for number, line in enumerate(LOOP.splitlines(), start=1) if f"# plant: {plant}" in line)


def lead(found: dict[str, Any]) -> dict[str, Any]:
    """The first finding that is about the program."""
    return next(each for each in found["findings"] if each["trouble"] != "shared machine")


@pytest.mark.parametrize(
    ("plant", "trouble"),
    [("step", "env-bound"), ("reset", "reset-bound"), ("logger", "logging-bound"), ("callback", "python-bound")],
)
def test_what_is_slow_is_named_by_its_line(place: Path, plant: str, trouble: str) -> None:
    found, _ = profiled(sys.executable, "train.py", plant=plant)
    first = lead(found)
    assert (first["trouble"], Path(first["file"]).name, first["line"]) == (trouble, "train.py", marked(plant))
    calls = {each["kind"]: each["count"] for each in found["calls"]}
    assert calls["env.step"] == 100
    assert calls["env.reset"] == 1 + 2 * 9  # that of the vector, and those of both within every tenth step


def test_output_results_and_exit_code_are_the_programs_own(place: Path) -> None:
    plain = subprocess.run([sys.executable, "train.py"], capture_output=True, check=False)
    _, done = profiled(sys.executable, "train.py")
    assert done.stdout == plain.stdout
    assert done.returncode == plain.returncode == 3


def test_a_traceback_is_the_programs_own(place: Path) -> None:
    environment = {**os.environ, "PLANT": "fails"}
    plain = subprocess.run([sys.executable, "train.py"], capture_output=True, check=False, env=environment)
    _, done = profiled(sys.executable, "train.py", plant="fails")
    assert plain.stderr.startswith(b"Traceback")
    assert done.stderr.startswith(plain.stderr)
    assert done.returncode == 1


def test_worker_processes_are_watched_too(place: Path) -> None:
    Path("workers.py").write_text(
        "import gymnasium as gym, numpy as np, train\n"
        "if __name__ == '__main__':\n"
        "    envs = gym.vector.AsyncVectorEnv([train.Walk] * 2, context='fork')\n"
        "    envs.reset(seed=1)\n"
        "    for _ in range(100):\n"
        "        envs.step(np.ones(2, np.int64))\n"
        "    envs.close()\n"
    )
    found, done = profiled(sys.executable, "workers.py", plant="step", PYTHONPATH=".")
    assert done.returncode == 0, done.stderr.decode()
    first = lead(found)
    assert (first["trouble"], Path(first["file"]).name, first["line"]) == ("env-bound", "train.py", marked("step"))
    assert "2 worker processes" in first["evidence"]


def test_a_sitecustomize_of_the_programs_own_still_runs(place: Path) -> None:
    Path("mine").mkdir()
    Path("mine/sitecustomize.py").write_text("print('mine')\n")
    Path("small.py").write_text("import sitecustomize, sys, time\nprint(sitecustomize.__file__)\ntime.sleep(0.3)\n")
    found, done = profiled(sys.executable, "small.py", PYTHONPATH="mine")
    # Before it, ours: the profiler's own interpreter has the same path.
    assert done.stdout.decode().splitlines()[1:] == ["mine", str(place / "mine" / "sitecustomize.py")]
    assert lead(found)["line"] == 3


def test_a_program_that_keeps_out_is_said_to_be_unwatched(place: Path) -> None:
    found, done = profiled(sys.executable, "-I", "-c", "print('alone')")
    assert found["verdict"].startswith("NOT WATCHED: no Python of the program loaded the sampler")
    assert done.stdout == b"alone\n"


def test_phases_of_a_loop_recorded_with_mileage_have_their_stacks(place: Path) -> None:
    Path("phases.py").write_text(
        f"import sys; sys.path.insert(0, {SOURCE!r})\n"
        "import time\n"
        "import mileage\n"
        "with mileage.Ledger('x.db').run('mine') as run:\n"
        "    for _ in range(20):\n"
        "        with run.phase('dreaming'):\n"
        "            time.sleep(0.03)\n"
    )
    found, done = profiled(sys.executable, "phases.py")
    assert done.returncode == 0, done.stderr.decode()
    assert found["phases"]["dreaming"] > 0.0
    assert next(each["line"] for each in found["lines"] if each["file"].endswith("phases.py") and each["line"] > 3) == 7


def test_arguments_of_the_programs_own_parser_are_its_settings(place: Path) -> None:
    Path("parsed.py").write_text(
        "import argparse, train\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--num-envs', type=int, default=2)\n"
        "parser.add_argument('--api-token', default='sk-1')\n"
        "args = parser.parse_args()\n"
        "train.train(args.num_envs)\n"
    )
    found, _ = profiled(sys.executable, "parsed.py", "--num-envs", "3", plant="step", PYTHONPATH=".")
    settings = lead(found)["settings"]
    assert settings == [{"name": "num_envs", "value": 3, "where": "parsed.py:3", "options": ["--num-envs"]}]
    assert "sk-1" not in json.dumps(found)


@TORCH
def test_batches_that_are_too_small_are_named_by_their_setting(place: Path) -> None:
    Path("learn.py").write_text(
        "import torch\n"
        "batch_size = 2\n"
        "torch.set_num_threads(1)\n"
        "net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)\n"
        "for _ in range(15_000):\n"
        "    optimizer.zero_grad()\n"
        "    net(torch.ones(batch_size, 4)).pow(2).mean().backward()\n"
        "    optimizer.step()\n"
        "torch.save(net.state_dict(), 'net.pt')\n"
    )
    found, done = profiled(sys.executable, "learn.py")
    assert done.returncode == 0, done.stderr.decode()
    small = next(each for each in found["findings"] if each["trouble"] == "undersized batch")
    assert "batch_size = 2 (learn.py:2)" in small["remedy"]
    calls = {each["kind"]: each["count"] for each in found["calls"]}
    assert (calls["backward"], calls["optimizer.step"], calls["checkpoint"]) == (15_000, 15_000, 1)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--",), "name the program to profile"),
        (
            ("--export", "html", "--", "true"),
            "standard output is the program's own: name a file for the report with --out",
        ),
        (("--export", "pdf", "--out", "x", "--", "true"), "--export 'pdf' is not known: use one of md, html"),
        (("--seed", "3", "--", "true"), "--seed is for runs of mileage's own, not for a program after --"),
        (("--timeout", "0", "--", "true"), "--timeout must be above 0 seconds, not 0"),
        (("--try-arg", "--n 3", "--", "true"), "--try-arg '--n 3' cannot be read"),
        (("--", "no-such-program"), "no-such-program cannot be run: there is no such program"),
        (("--timeout", "3", "ppo", "CartPole-v1"), "--try-arg and --timeout are for a program"),
    ],
)
def test_mistakes_are_one_sentence(
    place: Path, words: tuple[str, ...], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from mileage.cli import main

    arguments, sys.argv = sys.argv, ["mileage", "profile", "--no-ledger", *words]
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = arguments
    told = capfd.readouterr().err
    assert ended.value.code == 2
    assert re.fullmatch(r"mileage: .*\n", told)
    assert sentence in told


def test_a_try_changes_arguments_and_keeps_every_run(place: Path) -> None:
    Path("short.py").write_text("import sys, time\ntime.sleep(0.4 / int(sys.argv[2]))\n")
    code = "import sys; sys.path[:0] = [sys.argv.pop(1)]; from mileage.cli import main; main()"
    subprocess.run(
        [sys.executable, "-c", code, SOURCE, "profile", "--no-ledger", "-q", "--try-arg", "--n {2,4}", "--budget",
         "0.1", "--json", "--out", "found.json", "--", sys.executable, "short.py", "--n", "1"],
        check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    arms = {each["name"]: each for each in json.loads(Path("found.json").read_text())["tried"]["arms"]}
    assert arms["--n 4"]["command"][-3:] == ["short.py", "--n", "4"]
    assert all(len(each["seconds"]) == 1 for each in arms.values())
    assert arms["--n 4"]["result"].startswith("too few rounds")


def test_a_report_of_before_stays_until_there_is_a_new_one(place: Path) -> None:
    Path("before.json").write_text("kept")
    done = subprocess.run(
        [sys.executable, "-m", "mileage", "profile", "--no-ledger", "--json", "--out", "before.json", "--", "./none"],
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert Path("before.json").read_text() == "kept"
