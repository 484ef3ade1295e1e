"""Running statistics of Stable-Baselines3's `VecNormalize`, taken over by an agent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mileage.algorithms.registry import BUILT_IN
from mileage.algorithms.rollout_learner import RolloutLearner
from mileage.contracts import Learner
from mileage.errors import UsageError
from mileage.records import ReadRecord, Record
from mileage.types import F64

_EPSILON = 1e-8
_USUAL_CLIP = 10.0


def read_statistics(source: Any) -> dict[str, F64]:
    """The statistics in `source` as float64 arrays.

    `source` is a `VecNormalize` object, a mapping of arrays or the path of an `.npz` file, with the entries `obs_mean`
    and `obs_var` (O,), and where there are any `obs_count`, `return_mean`, `return_var`, `return_count`, `clip_obs` and
    `epsilon`. Files are read without pickle.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.suffix == ".pkl":
            raise UsageError(f"{path} is a pickle, which is not loaded here: export it to .npz from Stable-Baselines3")
        try:
            with np.load(path, allow_pickle=False) as file:
                found: ReadRecord = dict(file)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read as an .npz file of statistics") from error
    elif isinstance(source, Mapping):
        found = source
    elif hasattr(source, "obs_rms"):
        found = _from_object(source)
    else:
        raise UsageError(f"statistics must be a VecNormalize object, a mapping or an .npz file, not {source!r}")
    missing = [name for name in ("obs_mean", "obs_var") if name not in found]
    if missing:
        raise UsageError(f"statistics have no {missing[0]!r}: they need obs_mean and obs_var")
    return {name: np.asarray(value, np.float64) for name, value in found.items()}


def _from_object(source: Any) -> Record:
    if isinstance(source.obs_rms, Mapping):
        raise UsageError("statistics of dict observations cannot be taken over: normalise inside the module instead")
    return {
        "obs_mean": source.obs_rms.mean,
        "obs_var": source.obs_rms.var,
        "obs_count": source.obs_rms.count,
        "return_mean": source.ret_rms.mean,
        "return_var": source.ret_rms.var,
        "return_count": source.ret_rms.count,
        "clip_obs": source.clip_obs,
        "epsilon": source.epsilon,
    }


def take_over(learner: Learner, source: Any) -> None:
    """Normalise a learner's observations by the statistics in `source`, and rewards too if it scales them.

    With `normalise_observations` they go on being learned from what they are; without, they stay.
    """
    if not isinstance(learner, RolloutLearner):
        *first, last = (each.name for each in BUILT_IN if each.on_policy)
        use = f"use {', '.join(first)} or {last}, or wrap the environment"
        raise UsageError(f"{type(learner).__name__.lower()} does not normalise observations: {use}")
    found = read_statistics(source)
    policy, config = learner.policy, learner.config
    shape = (policy.obs_size,)
    if found["obs_mean"].shape != shape or found["obs_var"].shape != shape:
        raise UsageError(f"statistics are for observations of shape {found['obs_mean'].shape}, not {shape}")
    if policy.obs_mean.shape != shape or policy.leaves is not None:
        raise UsageError("statistics can be taken over for observations that are vectors")
    clip = float(found.get("clip_obs", np.array(_USUAL_CLIP)))
    if config.normalise_observations and clip != _USUAL_CLIP:
        raise UsageError(f"clip_obs must be {_USUAL_CLIP:g} where observations go on being normalised, not {clip:g}")
    policy.obs_mean[:] = found["obs_mean"]
    policy.obs_scale[:] = 1.0 / np.sqrt(found["obs_var"] + float(found.get("epsilon", np.array(_EPSILON))))
    learner.set_obs_limit(clip)
    if config.normalise_observations:
        count = float(found.get("obs_count", np.array(1.0)))
        learner.obs_moments[:] = np.stack([np.full(shape, count), found["obs_mean"], found["obs_var"] * count])
    if config.normalise_rewards and "return_var" in found:
        count = float(found.get("return_count", np.array(1.0)))
        mean = float(found.get("return_mean", np.array(0.0)))
        learner.return_moments[:] = (count, mean, float(found["return_var"]) * count)
