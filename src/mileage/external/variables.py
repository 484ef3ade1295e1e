"""The environment variables of a program that are kept with its run: those that are known to change what it does.

Anything may stand in an environment, and most of it is nobody's business: keys under names that do not say so,
addresses of a company's servers. So a variable is kept because it is known, or asked for by name; all others are left
out, and a secret is left out whatever it is called.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable

from mileage.ledger.secrets import is_secret_variable, scrubbed_value
from mileage.records import Record

_LONGEST_VALUE = 400

_THREADS_AND_NUMBERS = (
    "OMP_*", "KMP_*", "GOMP_*", "MKL_*", "OPENBLAS_*", "BLIS_*", "VECLIB_*", "NUMEXPR_*", "NUMBA_*", "MALLOC_*",
)  # fmt: skip
_DEVICES = (
    "CUDA_*", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE", "CUBLAS_*", "CUDNN_*", "NCCL_*", "GLOO_*", "HIP_*",
    "ROCR_VISIBLE_DEVICES", "TORCH_*", "TORCHINDUCTOR_*", "PYTORCH_*", "TRITON_*", "XLA_*", "JAX_*", "TF_*",
    "ACCELERATE_*",
)  # fmt: skip
_PLACE = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID",
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NNODES", "SLURM_CPUS_PER_TASK",
    "SLURM_JOB_PARTITION", "SLURM_ARRAY_TASK_ID", "SLURM_GPUS*",
)  # fmt: skip
_SIMULATORS = ("MUJOCO_*", "PYOPENGL_PLATFORM", "SDL_VIDEODRIVER", "DISPLAY")
_INTERPRETER = (
    "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "LANG", "LC_*", "TZ",
)  # fmt: skip
_TRACKERS = ("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "TRACKIO_DIR", "MILEAGE_*")
_KNOWN = tuple(
    re.compile(fnmatch.translate(pattern))
    for pattern in (*_THREADS_AND_NUMBERS, *_DEVICES, *_PLACE, *_SIMULATORS, *_INTERPRETER, *_TRACKERS)
)
_OF_PYTHON = re.compile(r"PYTHON[A-Z]+")


def kept_variables(asked: Iterable[str] = ()) -> Record:
    """The variables that a run keeps: the known ones and those that are `asked` for, none with a secret in it."""
    wanted = set(asked)
    shown = {
        name: value[:_LONGEST_VALUE]
        for name, value in sorted(os.environ.items())
        if (name in wanted or _is_known(name)) and not is_secret_variable(name)
    }
    clean: Record = scrubbed_value(shown)
    return {name: value for name, value in clean.items() if value == shown.get(name)}


def _is_known(name: str) -> bool:
    return _OF_PYTHON.fullmatch(name) is not None or any(pattern.fullmatch(name) for pattern in _KNOWN)
