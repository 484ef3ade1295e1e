"""What a sample was spent on, and at which line of the program."""

from __future__ import annotations

import pytest

from mileage.profiling.programs.layers import ProgramLayer, ProgramSettings, hot_places, layered, shown_path
from mileage.profiling.programs.trace import Process, Setting, StackFrame
from profiling.programs.made_up import MAIN, STEP, TORCH, process

PACKAGES = "/venv/lib/python3.11/site-packages/"
IMPORT = StackFrame("<frozen importlib._bootstrap>", "_find_and_load", 1)
SLEEP = StackFrame("/usr/lib/python3.11/threading.py", "wait", 1)


@pytest.mark.parametrize(
    ("stack", "kind", "layer"),
    [
        ([MAIN, STEP], "env.step", ProgramLayer.STEP),
        ([MAIN, IMPORT, STEP], "env.step", ProgramLayer.IMPORT),
        ([MAIN, TORCH], "", ProgramLayer.FORWARD),
        ([MAIN, TORCH], "backward", ProgramLayer.BACKWARD),
        ([MAIN, StackFrame("/home/me/train.py", "evaluate", 3), STEP], "env.step", ProgramLayer.EVALUATION),
        ([MAIN, StackFrame("/home/me/train.py", "Policy.evaluate_actions", 3), TORCH], "", ProgramLayer.FORWARD),
        ([MAIN, StackFrame("/home/me/train.py", "Trainer.log_figures", 3)], "", ProgramLayer.LOGGING),
        ([MAIN, StackFrame("/home/me/train.py", "Trainer.log_figures", 3)], "callback", ProgramLayer.LOGGING),
        ([MAIN, StackFrame("/home/me/train.py", "save_checkpoint", 3)], "", ProgramLayer.CHECKPOINT),
        ([MAIN, StackFrame("/home/me/train.py", "login", 3)], "", ProgramLayer.OTHER),
        ([MAIN, StackFrame(PACKAGES + "torch/functional.py", "einsum", 3)], "", ProgramLayer.TORCH),
        ([MAIN, StackFrame(PACKAGES + "jax/_src/pjit.py", "cache_miss", 3)], "", ProgramLayer.JAX),
        ([MAIN, StackFrame(PACKAGES + "jax/_src/compiler.py", "compile", 3)], "", ProgramLayer.COMPILE),
        ([MAIN, StackFrame("/usr/lib/python3.11/multiprocessing/connection.py", "_recv", 3)], "", ProgramLayer.WAITING),
        ([MAIN, StackFrame(PACKAGES + "numpy/evaluate.py", "evaluate", 3)], "", ProgramLayer.OTHER),
        ([MAIN], "", ProgramLayer.OTHER),
    ],
)
def test_a_sample_has_one_layer(stack: list[StackFrame], kind: str, layer: ProgramLayer) -> None:
    run = layered(process([(stack, kind, 1.0, 1.0)]))
    assert run.by_layer() == {layer: 1.0}


def test_layers_add_up_and_waiting_for_a_core_is_apart() -> None:
    run = layered(process([([MAIN, STEP], "env.step", 2.0, 0.5), ([MAIN, TORCH], "", 1.0, 0.5)], delay=0.25))
    assert run.by_layer() == {ProgramLayer.STEP: 1.5, ProgramLayer.FORWARD: 0.75}
    assert run.total == pytest.approx(3.0)
    assert float(run.waited_seconds.sum()) == pytest.approx(0.75)


def test_time_in_a_library_is_that_of_the_line_that_called_it() -> None:
    run = layered(process([([MAIN, STEP, SLEEP], "env.step", 2.0, 0.5), ([MAIN, TORCH], "", 1.0, 0.75)]))
    first, second = hot_places(run)
    assert (first.where, first.seconds, first.off_cpu) == ("envs.py:7", 2.0, 0.75)
    assert (second.where, second.inside) == ("train.py:10", "Module._call_impl (torch/nn/modules/module.py)")


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/home/me/train.py", True),
        (PACKAGES + "torch/x.py", False),
        ("/usr/lib/python3.11/json/decoder.py", False),
        ("/usr/lib/python3.11/site-packages/x.py", False),
        ("<string>", False),
        ("<frozen runpy>", False),
        ("", False),
    ],
)
def test_whose_code_it_is(path: str, own: bool) -> None:
    run = layered(process([([StackFrame(path, "f", 1)], "", 1.0, 1.0)]))
    assert run.is_own[1] is own


def test_a_program_on_the_command_line_is_its_own() -> None:
    made = process([([StackFrame("<string>", "<module>", 2)], "", 1.0, 1.0)])
    made.words = ("python", "-c", "…")
    assert [place.where for place in hot_places(layered(made))] == ["<string>:2"]


def test_paths_are_shown_from_where_the_program_ran() -> None:
    assert shown_path("/home/me/a/b.py", "/home/me") == "a/b.py"
    assert shown_path("/home/meme/b.py", "/home/me") == "/home/meme/b.py"
    assert shown_path(PACKAGES + "torch/x.py", "/home/me") == "torch/x.py"


SOURCE = """\
import argparse
batch_size = 64
class Args:
    num_envs: int = 4
parser.add_argument("--eval-freq", type=int, default=1000)
model = PPO("MlpPolicy", env, n_steps=256)
config = {"num_mini_batches": 4}
"""


def test_settings_are_found_where_they_are_written(tmp_path: object) -> None:
    path = f"{tmp_path}/train.py"
    with open(path, "w") as file:
        file.write(SOURCE)
    made = Process(1, directory=str(tmp_path))
    made.settings = [Setting("args", "num_envs", 16, ("--num-envs",)), Setting("PPO", "gamma", 0.9)]
    settings = ProgramSettings(made, [path])
    names = ("batch_size", "num_envs", "eval_freq", "n_steps", "num_mini_batches", "gamma", "log_interval")
    found = {name: str(settings.find(name)) for name in names}
    assert found == {
        "batch_size": "batch_size = 64 (train.py:2)",
        "num_envs": "num_envs = 16 (train.py:4), option --num-envs",
        "eval_freq": "eval_freq = 1000 (train.py:5)",
        "n_steps": "n_steps = 256 (train.py:6)",
        "num_mini_batches": "num_mini_batches = 4 (train.py:7)",
        "gamma": "gamma = 0.9",
        "log_interval": "None",
    }
