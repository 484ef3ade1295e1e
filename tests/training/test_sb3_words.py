"""The first things that somebody types who comes from Stable-Baselines3."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import mileage
from mileage.algorithms import configs
from mileage.cli.app import app
from mileage.errors import UsageError
from mileage.training import recording

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migrating-from-sb3.md"
SMALL = {"n_envs": 4, "n_steps": 64}


@pytest.mark.parametrize(
    ("algorithm", "theirs", "ours"),
    [
        ("PPO", "batch_size", "minibatch"),
        ("DQN", "batch_size", "batch"),
        ("PPO", "n_epochs", "epochs"),
        ("SAC", "ent_coef", "temperature"),
        ("A2C", "ent_coef", "entropy_coef"),
        ("TD3", "buffer_size", "capacity"),
    ],
)
def test_a_word_of_theirs_is_answered_with_the_word_here(algorithm: str, theirs: str, ours: str) -> None:
    wanted = f"{algorithm.lower()} has no hyperparameter '{theirs}': it is `{ours}` here"
    with pytest.raises(UsageError) as error:
        getattr(mileage, algorithm)(
            "CartPole-v1" if algorithm in ("PPO", "A2C", "DQN") else "Pendulum-v1", **{theirs: 1}
        )
    assert str(error.value) == wanted


def test_every_hint_is_a_row_of_the_page() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    for theirs, here in configs.HERE.items():
        for ours in here:
            assert any(theirs in row.split(" | ")[0] and ours in row.split(" | ", 1)[1] for row in rows), (theirs, ours)


def test_the_first_ten_minutes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = mileage.PPO("MlpPolicy", "CartPole-v1", verbose=1, seed=None, **SMALL)
    assert 0 <= model.seed < 2**31
    assert model.seed != mileage.PPO("CartPole-v1", seed=None).seed
    run = model.learn(total_timesteps=512, progress_bar=True)
    assert run.steps == 512
    assert f"seed {model.seed}: finished, 512 steps" in capsys.readouterr().err
    model.learn(512, progress_bar=False)
    assert "finished" not in capsys.readouterr().err
    with pytest.raises(AttributeError, match="`learn` returns the run; ask the agent for predict"):
        run.predict([0.0] * 4)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="learn has no argument 'eval_freq': it is `eval_every` here"):
        model.learn(512, eval_freq=10)
    with pytest.raises(UsageError, match="unknown argument of learn 'targt': did you mean 'target'"):
        model.learn(512, targt="mean_return>=1")
    with pytest.raises(UsageError, match="'total_timestep': did you mean 'total_timesteps'"):
        model.learn(total_timestep=512)


def test_a_run_is_loaded_from_its_directory_and_examined_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILEAGE_DB", str(tmp_path / "l.db"))
    agent = mileage.PPO("CartPole-v1", **SMALL)
    run = agent.learn(512, ledger=True, name="small", checkpoint=tmp_path / "runs" / "one" / "checkpoint.safetensors")
    for cls in (mileage, mileage.PPO):
        assert cls.load(tmp_path / "runs" / "one").steps == 512
    with pytest.raises(mileage.MileageError, match="holds no checkpoint"):
        mileage.load(tmp_path)
    shown = [
        CliRunner().invoke(app, ["eval", words, "--episodes", "3", "--json"], catch_exceptions=False).output
        for words in (str(tmp_path / "runs" / "one"), "small", run.run_id)
    ]
    assert len({json.dumps(json.loads(text)["returns"]) for text in shown}) == 1
    with pytest.raises(mileage.MileageError, match="checkpoint nobody does not exist"):
        CliRunner().invoke(app, ["eval", "nobody"], catch_exceptions=False)


def test_compiling_is_said_once_and_only_where_it_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mileage.kernels.machine.precompile.missing", lambda names: ["gae"])
    mileage.PPO("CartPole-v1", **SMALL).learn(256)
    assert capsys.readouterr().err == "compiling gae (once; kept for later runs) …\n"
    mileage.PPO("CartPole-v1", **SMALL).learn(256, progress=False)
    assert capsys.readouterr().err == ""


def test_progress_is_shown_on_a_terminal_and_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    assert not recording.on_screen()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert recording.on_screen()
    monkeypatch.undo()
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", type("IPython", (), {"get_ipython": staticmethod(lambda: shell)}))  # type: ignore[arg-type]
    assert recording.on_screen()
