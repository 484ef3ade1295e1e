"""Job files run the same command, whatever is in it."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from mileage.errors import UsageError
from mileage.jobs.driver import place_called
from mileage.jobs.job import Needs, manifest

WORDS = ["train", "ppo", "CartPole-v1", "--target", "mean_return>=475", "--name", 'it\'s $HOME `id` "x"']


def test_slurm_runs_the_words_as_they_are(tmp_path: Path) -> None:
    text = manifest("slurm", WORDS, Needs(4, 8.0, 1), "My Run")
    assert "#SBATCH --job-name=my-run" in text
    assert {"#SBATCH --cpus-per-task=4", "#SBATCH --mem=8000M", "#SBATCH --gpus-per-node=1"} <= set(text.splitlines())
    script = tmp_path / "job.sh"
    script.write_text(text.replace("exec mileage", "printf '%s\\n'"))
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == WORDS


def test_kubernetes_and_skypilot_quote_the_command() -> None:
    text = manifest("kubernetes", WORDS, Needs(2, 1.5), "a/b")
    line = next(line for line in text.splitlines() if "command:" in line)
    script = json.loads(line.partition(":")[2])[2]
    assert shlex.split(script.partition("exec ")[2]) == ["mileage", *WORDS]
    assert 'limits: {cpu: "2", memory: "1.5G"}' in text
    assert "  name: a-b\n" in text
    run = next(line for line in manifest("skypilot", WORDS, Needs(), "x").splitlines() if line.startswith("run: "))
    assert shlex.split(json.loads(run.removeprefix("run: "))) == ["mileage", *WORDS]


def test_unknown_kinds_and_places_are_sentences() -> None:
    with pytest.raises(UsageError, match="--emit 'nomad' is not known: use slurm, kubernetes, skypilot"):
        manifest("nomad", WORDS, Needs(), "x")
    for text in ("mars", "local:x", "local:", "ray:x", "slurm:"):
        with pytest.raises(UsageError, match=r"--on '.*(is not known|cannot be read): write local\[:N\]"):
            place_called(text)
