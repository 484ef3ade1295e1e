"""Job files as text: the same command for Slurm, Kubernetes and SkyPilot."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence

from mileage._errors import UsageError
from mileage._version import __version__
from mileage.placing.jobs import Needs

KINDS = ("slurm", "kubernetes", "skypilot")
_MINUTES = 24 * 60
_WARNING_SECONDS = 120


def manifest(kind: str, words: Sequence[str], needs: Needs, name: str) -> str:
    """A job file that runs `mileage` with these words."""
    if kind not in KINDS:
        raise UsageError(f"--emit {kind!r} is not known: use {', '.join(KINDS)}")
    label = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:50].strip("-") or "mileage"
    command = shlex.join(["mileage", *words])
    return {"slurm": _slurm, "kubernetes": _kubernetes, "skypilot": _skypilot}[kind](command, needs, label)


def _slurm(command: str, needs: Needs, label: str) -> str:
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={label}",
        f"#SBATCH --cpus-per-task={needs.cores}",
        *([f"#SBATCH --mem={round(needs.memory_gb * 1000)}M"] if needs.memory_gb else []),
        *([f"#SBATCH --gpus-per-node={needs.gpus}"] if needs.gpus else []),
        f"#SBATCH --time={_MINUTES}",
        "#SBATCH --requeue",
        f"#SBATCH --signal=USR1@{_WARNING_SECONDS}",
        "# The training saves when Slurm warns it; continue with `mileage train --resume DIRECTORY`.",
        f"exec {command}",
    ]
    return "\n".join(lines) + "\n"


def _kubernetes(command: str, needs: Needs, label: str) -> str:
    # Text in double quotes as JSON has it is YAML too.
    limits = [f'cpu: "{needs.cores}"']
    limits += [f'memory: "{needs.memory_gb:g}G"'] if needs.memory_gb else []
    limits += [f'nvidia.com/gpu: "{needs.gpus}"'] if needs.gpus else []
    script = json.dumps(f"pip install 'mileage=={__version__}' && exec {command}")
    return f"""apiVersion: batch/v1
kind: Job
metadata:
  name: {label}
spec:
  backoffLimit: 3
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: {_WARNING_SECONDS}
      containers:
        - name: mileage
          image: "python:3.11"
          command: ["/bin/bash", "-c", {script}]
          resources:
            limits: {{{", ".join(limits)}}}
"""


def _skypilot(command: str, needs: Needs, label: str) -> str:
    lines = [f"name: {label}", "resources:", f"  cpus: {needs.cores}+"]
    lines += [f"  memory: {needs.memory_gb:g}+"] if needs.memory_gb else []
    lines += ["  use_spot: true", f"setup: {json.dumps(f'pip install mileage=={__version__}')}"]
    lines += [f"run: {json.dumps(command)}"]
    return "\n".join(lines) + "\n"
