"""`mileage train`, `eval` and their errors, as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import extras
from waiting import until


def mileage(*args: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mileage", *args]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | (env or {}), capture_output=True, text=True, timeout=300, check=False
    )


def test_reaches_the_target_and_reports_the_cost(tmp_path: Path) -> None:
    target = ["--target", "mean_return>=475", "--seeds", "2", "--price", "3.60", "--json"]
    done = mileage("train", "ppo", "CartPole-v1", *target, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["aggregate"]["runs"] == 2
    for run in result["runs"]:
        assert run["target_reached"]
        assert run["mean_return"] >= 475
        # $3.60 an hour is a tenth of a cent a second.
        assert run["cost_usd"] == pytest.approx(run["wall_seconds"] / 1000, rel=1e-6)
        assert sum(phase["seconds"] for phase in run["phases"].values()) == pytest.approx(run["wall_seconds"], abs=1e-5)
        assert Path(tmp_path, run["checkpoint"]).is_file()
    listed = mileage("ledger", "list", "--json", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert {run["seed"] for run in json.loads(listed.stdout)} == {0, 1}


def test_the_table_is_shown_without_a_terminal(tmp_path: Path) -> None:
    done = mileage("train", "ppo", "CartPole-v1", "--steps", "4096", "--price", "2.20", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for line in ("train throughput:", "total wall-clock:", "held-out success:", "target reached: no target set"):
        assert line in done.stdout
    assert "seed 0: finished" in done.stderr
    said, last = done.stdout.strip().splitlines()[-2:]
    (file,) = (tmp_path / "runs").glob("ppo-*/checkpoint.safetensors")
    (run,) = json.loads(mileage("ledger", "list", "--json", cwd=tmp_path).stdout)
    assert said == f"seed 0: run {run['run_id']}, saved {file.relative_to(tmp_path)}"
    assert last == "next: mileage report ppo-CartPole-v1 --open"
    assert "\x1b[" not in done.stdout + done.stderr


@extras.TORCH
def test_torch_trains_from_the_command_line(tmp_path: Path) -> None:
    words = ["--backend", "torch", "--policy", "mlp", "--device", "cpu", "--preset", "none", "--set", "n_steps=32"]
    done = mileage("train", "ppo", "CartPole-v1", *words, "--steps", "512", "--episodes", "4", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)["runs"][0]
    again = mileage("eval", run["checkpoint"], "--episodes", "4", "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["mean_return"] == pytest.approx(run["mean_return"])


def test_eval_plays_the_same_episodes_as_training_did(tmp_path: Path) -> None:
    done = mileage("train", "ppo", "CartPole-v1", "--steps", "4096", "--json", cwd=tmp_path)
    run = json.loads(done.stdout)["runs"][0]
    again = mileage("eval", run["checkpoint"], "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["mean_return"] == run["mean_return"]
    missed = mileage("eval", str(Path(run["checkpoint"]).parent), "--target", "mean_return>=501", cwd=tmp_path)
    assert missed.returncode == 1
    assert "not met" in missed.stdout


def test_interrupt_saves_and_resume_goes_on_bit_for_bit(tmp_path: Path) -> None:
    options = ["--steps", "6000000", "--eval-every", "1000000", "--set", "n_envs=8", "--set", "n_steps=128"]
    options += ["--checkpoint-every", "102400"]
    command = [sys.executable, "-m", "mileage", "train", "ppo", "CartPole-v1", "-q", *options]  # said all the same
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: list(tmp_path.glob("runs/ppo-*/checkpoint.safetensors")))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "interrupted: saved" in errors
    directory = next(tmp_path.glob("runs/ppo-*"))
    assert str(directory.relative_to(tmp_path)) in errors

    from mileage.training.agents import load

    stopped = load(directory / "checkpoint.safetensors")
    at = stopped.steps
    assert 0 < at < 6_000_000
    assert at % 1024 == 0
    # The same run without an interrupt, to the same place.
    from mileage import PPO

    straight = PPO("CartPole-v1", seed=0, n_envs=8, n_steps=128)
    straight.horizon = stopped.horizon
    straight.learn(stopped.horizon, eval_every=10**9, callback=lambda progress: progress.steps < at)
    assert straight.steps == at
    assert (straight.policy.params == stopped.policy.params).all()
    resumed = mileage("train", "--resume", str(directory), "--steps", "2048", "--json", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["runs"][0]["env_steps"] == at + 2048
    assert (
        load(next(path for path in tmp_path.glob("runs/ppo-*/*.safetensors") if directory not in path.parents)).steps
        == at + 2048
    )
    runs = json.loads(mileage("ledger", "list", "--json", cwd=tmp_path).stdout)
    assert [run["state"] for run in runs] == ["finished", "stopped"]


def test_resume_keeps_the_exam(tmp_path: Path) -> None:
    words = ["--steps", "2048", "--preset", "none", "--episodes", "7", "--success", "return>=20", "--keep-best"]
    first = mileage("train", "ppo", "CartPole-v1", *words, "--json", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    run = json.loads(first.stdout)["runs"][0]
    directory = Path(run["checkpoint"]).parent
    assert (tmp_path / directory / "best.safetensors").is_file()
    second = mileage("train", "--resume", str(directory), "--steps", "2048", "--json", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    third = mileage("train", "--resume", str(directory), "--steps", "2048", "--episodes", "3", "--json", cwd=tmp_path)
    assert third.returncode == 0, third.stderr
    panels = [each["panel_id"] for each in json.loads(mileage("ledger", "list", "--json", cwd=tmp_path).stdout)]
    assert panels[1] == panels[2] == json.loads(first.stdout)["panel_id"]
    assert panels[0] != panels[1]


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("nothing to do with runs")
    done = mileage("train", "ppo", "CartPole-v1", "--steps", "2048", "--db", str(file), cwd=tmp_path)
    assert done.returncode == 2
    assert f"{file} is no database" in done.stderr
    assert file.read_text() == "nothing to do with runs"
    assert not list(tmp_path.glob("*.spool"))


BAD_INPUT = [
    (["train", "ppo", "CartPole-v1", "--spot"], "spot says how an instance is bought"),
    (["train", "ppo", "CartPole-v1", "--eval-every", "-1"], "eval_every must be 0 or more"),
    (["train", "pop", "CartPole-v1"], "unknown algorithm 'pop'"),
    (["train", "ppo", "CartPole-v9"], "CartPole-v9"),
    (["train", "ppo"], "name an algorithm and an environment"),
    (["train", "ppo", "CartPole-v1", "--set", "learning_rate=-1"], "learning_rate must be above 0"),
    (["train", "ppo", "CartPole-v1", "--set", "learning_rate=fast"], "learning_rate must be of type float"),
    (["train", "ppo", "CartPole-v1", "--set", "lerning_rate=1"], "did you mean 'learning_rate'?"),
    (["train", "ppo", "CartPole-v1", "--set", "clip"], "NAME=VALUE"),
    (["train", "ppo", "CartPole-v1", "--target", "475"], "target '475' cannot be read"),
    (["train", "ppo", "CartPole-v1", "--seeds", "0"], "--seeds must be at least 1"),
    (["train", "ppo", "CartPole-v1", "--seed", str(2**31)], "reserved for held-out panels"),
    (["train", "ppo", "CartPole-v1", "--steps", "0"], "total_steps must be at least 1"),
    (["train", "ppo", "CartPole-v1", "--threads", "0"], "threads must be at least 1"),
    (["train", "ppo", "CartPole-v1", "--price", "free"], "price"),
    (["train", "ppo", "CartPole-v1", "--instance", "no-such-machine"], "no-such-machine"),
    (["train", "ppo", "CartPole-v1", "--preset", "absent.toml"], "preset 'absent.toml' does not exist"),
    (["train", "ppo", "CartPole-v1", "--env-kwargs", "{"], "--env-kwargs is not JSON"),
    (["train", "ppo", "CartPole-v1", "--out", "/proc/nowhere"], "cannot write to /proc/nowhere"),
    (["train", "--resume", "a.safetensors", "--backend", "torch"], "--resume keeps the run's back end"),
    (["train", "ppo", "CartPole-v1", "--backend", "tensorflow"], "unknown backend 'tensorflow'"),
    (["train", "ppo", "CartPole-v1", "--backend", "native", "--policy", "cnn"], "use backend='torch'"),
    (["train", "--resume", "absent.safetensors"], "absent.safetensors does not exist"),
    (["train", "ppo", "/usr:Mine"], "'/usr' is a directory: give the Python file in it"),
    (["train", "ppo", ".:Mine"], "is a directory: give the Python file in it"),
    (["train", "ppo", "/usr"], "say what in which file, as in /usr/FILE.py:NAME"),
    (["train", "ppo", "mine.py"], "say what in which file, as in mine.py:NAME"),
    (["train", "ppo", "damaged.safetensors:Mine"], "module 'damaged.safetensors' cannot be found"),
    (["train", "ppo", "./damaged.safetensors:Mine"], "whose name ends in .py"),
    (["train", "ppo", ":Mine"], "say what in which file, as in FILE.py:NAME"),
    (["train", "sac", "CartPole-v1"], "sac needs continuous actions"),
    (["train", "dqn", "Pendulum-v1"], "dqn needs discrete actions"),
    (["eval", "damaged.safetensors"], "damaged"),
    (["warmup", "CartPole-v7"], "CartPole-v7"),
]


@pytest.mark.parametrize(("arguments", "sentence"), BAD_INPUT, ids=[" ".join(case[0])[:60] for case in BAD_INPUT])
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from mileage.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      " + os.urandom(64))
    monkeypatch.setattr(sys, "argv", ["mileage", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    output = capfd.readouterr()
    assert stop.value.code == 2
    assert sentence in output.err
    assert output.err.count("\n") == 1
    assert "Traceback" not in output.err


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = mileage("--debug", "train", "ppo", "CartPole-v9", cwd=tmp_path)
    assert "Traceback" in done.stderr


def test_full_disk_is_one_sentence(tmp_path: Path) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000));"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "options = ['--steps', '2048', '--quiet', '--set', 'hidden=[256, 256]'];"
        "sys.argv = ['mileage', 'train', 'ppo', 'CartPole-v1', *options];"
        "from mileage.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "cannot be written: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob(".checkpoint*"))


@pytest.mark.parametrize(("algorithm", "more"), [("ppo", []), ("dqn", ["--set", "learning_starts=500"])])
def test_the_ledger_has_the_cadence_and_why_episodes_ended(tmp_path: Path, algorithm: str, more: list[str]) -> None:
    # An untrained MountainCar never gets up the hill: its 200-step limit ends every episode.
    done = mileage(
        "train", algorithm, "MountainCar-v0", "--steps", "4096", "--eval-every", "2048", "--episodes", "2", "-q",
        "--set", "n_envs=8", *more, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (listed,) = json.loads(mileage("ledger", "list", "--json", cwd=tmp_path).stdout)
    assert listed["eval_every_steps"] == 2048
    shown = json.loads(mileage("ledger", "show", listed["run_id"], "--json", cwd=tmp_path).stdout)
    reasons = [row["reset_reasons"] for row in shown["checkpoints"] if row["mean_return"] is not None]
    # 256 steps of each of eight environments: one end each, by the limit; then 512 steps: the second.
    assert reasons == [{"terminated": 0, "truncated": 8}, {"terminated": 0, "truncated": 8}]
