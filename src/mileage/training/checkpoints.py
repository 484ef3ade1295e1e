"""Checkpoints: one safetensors file whose header carries JSON. Written atomically; nothing in one is ever executed.

Format history
    1  arrays by name; metadata `mileage` = JSON with format, algorithm, env, seed, steps, config, counters, shapes
    of the policy
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from mileage.contracts import Saved
from mileage.errors import CheckpointError, UnknownNameError, UsageError
from mileage.records import ReadRecord, Record
from mileage.types import Array

FORMAT = 1
_KEY = "mileage"
# Arrays that hold what was seen, not what was learned of it: how their names begin, and whole names.
_NOT_LEARNED = ("env_", "replay_", "rollout_")
_SEEN = ("obs", "episode", "running_return")


def write(path: Path, arrays: Mapping[str, Array], metadata: Record) -> None:
    """Write a checkpoint so that `path` is either the old file or the whole new one."""
    from safetensors.numpy import save

    header = {_KEY: json.dumps({"format": FORMAT, **metadata}, sort_keys=True)}
    data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata=header)
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        reason = f"{error.filename} is a file" if isinstance(error, FileExistsError) else error.strerror or error
        raise CheckpointError(f"checkpoint {path} cannot be written: {reason}") from error
    finally:
        # Gone already if it took the place of `path`; left by an error or an interrupt otherwise.
        if temporary:
            Path(temporary).unlink(missing_ok=True)


CHECKPOINT = "checkpoint.safetensors"
"""What the checkpoint is called in the directory of a run."""


def checked_path(path: object) -> Path:
    """`path` as a Path; UsageError for what is none."""
    if isinstance(path, str | os.PathLike) and str(path):
        return Path(path)
    raise UsageError(f"path must be the path of a checkpoint, not {path!r}")


def read(path: Path) -> tuple[dict[str, Array], Record]:
    """Arrays and metadata of a checkpoint, or of the one in a run's directory."""
    from safetensors import SafetensorError, safe_open

    if path.is_dir() and not (path / CHECKPOINT).is_file():
        raise CheckpointError(f"{path} holds no {CHECKPOINT}")
    path = path / CHECKPOINT if path.is_dir() else path
    if not path.is_file():
        raise CheckpointError(f"checkpoint {path} does not exist")
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = (file.metadata() or {}).get(_KEY)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        metadata = json.loads(header or "")
    except (SafetensorError, OSError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged or not a mileage checkpoint") from error
    if not isinstance(metadata, dict) or not isinstance(metadata.get("format"), int):
        raise CheckpointError(f"checkpoint {path} is damaged or not a mileage checkpoint")
    if metadata["format"] > FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has format {metadata['format']}, this version reads up to {FORMAT}: upgrade mileage"
        )
    return arrays, metadata


def checked_env(name: object, path: Path) -> str:
    """The environment a checkpoint names, if that is an id: "module:name" would run whatever the checkpoint says."""
    if not isinstance(name, str):
        raise TypeError(f"env is {name!r}")
    if ":" in name:
        raise CheckpointError(
            f"checkpoint {path} names code as its environment, which is not run on its word: give env {name!r} "
            f"yourself, as in mileage.load({str(path)!r}, env={name!r})"
        )
    return name


def check_spaces(kept: Record | None, found: Record, path: Path) -> None:
    """CheckpointError if an environment shows or takes something else than the one that a checkpoint was made in."""
    for name, value in (kept or {}).items():
        if name in found and found[name] != value:
            raise CheckpointError(
                f"checkpoint {path} is of an environment whose {name} is {value}, not {found[name]}: give another env"
            )


def restore(live: Mapping[str, Array], arrays: Mapping[str, Array], path: Path) -> None:
    """Copy `arrays` into the `live` ones of their names, all or none."""
    try:
        Saved(arrays, {}).write_to(live)
    except UsageError as error:
        raise CheckpointError(f"checkpoint {path} does not fit: {error}") from error


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint says of an agent, and what its learner left."""

    algorithm: str
    env: str
    env_kwargs: Record
    seed: int
    steps: int
    """Environment steps taken."""
    horizon: int
    """Steps at which the training that was planned ends."""
    run_id: str | None
    """The run in the ledger."""
    target: str | None
    config: Record
    """Hyperparameters by name."""
    run_defaults: Record
    backend: str
    policy: str
    """`mlp`, `cnn`, or `module` for a user's own."""
    obs_limit: float
    """The policy's; infinite where nothing is normalised."""
    spaces: Record | None
    """What the environment shows and takes, as its codec describes it; None in files that do not say."""
    saved: Saved

    def write(self, path: Path) -> None:
        """Write it so that `path` is either the old file or the whole new one."""
        _check_finite(path, self.saved.arrays)
        names = [field.name for field in dataclasses.fields(self) if field.name != "saved"]
        metadata = {name: getattr(self, name) for name in names}
        metadata["obs_limit"] = None if math.isinf(self.obs_limit) else self.obs_limit
        write(path, self.saved.arrays, metadata | {"counters": dict(self.saved.counters)})

    @classmethod
    def of(cls, arrays: Mapping[str, Array], metadata: ReadRecord) -> Checkpoint:
        """From what `read` returned; KeyError, TypeError or ValueError if that makes no sense."""
        counters = {name: int(count) for name, count in metadata["counters"].items()}
        run_id, limit = metadata.get("run_id"), metadata["obs_limit"]
        return cls(
            **{name: metadata[name] for name in ("algorithm", "env", "env_kwargs", "seed", "target", "config")},
            steps=int(metadata["steps"]), horizon=int(metadata["horizon"]),
            run_id=None if run_id is None else str(run_id), run_defaults=dict(metadata["run_defaults"]),
            backend=metadata.get("backend", "native"), policy=metadata.get("policy", "mlp"),
            obs_limit=float(limit or math.inf), spaces=metadata.get("spaces"), saved=Saved(arrays, counters),
        )  # fmt: skip


def _check_finite(path: Path, arrays: Mapping[str, Array]) -> None:
    """CheckpointError if what was learned is no number any more; what environments left need not be one."""
    for name, array in arrays.items():
        if name not in _SEEN and not name.startswith(_NOT_LEARNED) and np.isnan(array).any():
            kept = "; the one that is there is kept" if path.exists() else ""
            raise CheckpointError(f"checkpoint {path} is not written, as {name!r} holds NaN{kept}")


@contextlib.contextmanager
def only_checkpoint_errors(path: Path) -> Iterator[None]:
    """Turn whatever a damaged or forged checkpoint leads to into a CheckpointError."""
    try:
        yield
    except KeyError as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {error} is missing") from error
    except UnknownNameError as error:
        if error.kind != "environment":
            raise CheckpointError(f"checkpoint {path} does not fit: {error}") from error
        raise CheckpointError(
            f"checkpoint {path} is of environment {error.name!r}, which is not known here: if it is your own, give it, "
            f"as in mileage.load({str(path)!r}, env=...), or import the module that defines it"
        ) from error
    except (AttributeError, TypeError, ValueError, OverflowError, MemoryError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged or does not fit: {error}") from error
