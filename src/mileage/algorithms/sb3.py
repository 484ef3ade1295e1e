"""The words of Stable-Baselines3: those that are taken as they are, and what the others are called here."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from mileage._errors import UnknownNameError, UsageError
from mileage._records import Record
from mileage._seeding import HELD_OUT_START

# Each page of docs/migrating-from-sb3.md says the same.
HERE: dict[str, tuple[str, ...]] = {
    "batch_size": ("minibatch", "batch"), "n_epochs": ("epochs",), "clip_range": ("clip",),
    "clip_range_vf": ("value_clip",), "normalize_advantage": ("normalise_advantages",),
    "ent_coef": ("entropy_coef", "temperature"), "vf_coef": ("value_coef",), "rms_prop_eps": ("adam_eps",),
    "buffer_size": ("capacity",), "train_freq": ("train_every",), "n_steps": ("n_step",),
    "action_noise": ("exploration_noise",), "target_update_interval": ("target_every",),
    "target_policy_noise": ("target_noise",), "target_noise_clip": ("noise_limit",),
    "exploration_fraction": ("exploration",), "exploration_initial_eps": ("epsilon_start",),
    "exploration_final_eps": ("epsilon_end",), "policy_kwargs": ("hidden", "activation"),
    "net_arch": ("hidden",), "activation_fn": ("activation",), "norm_obs": ("normalise_observations",),
    "norm_reward": ("normalise_rewards",),
    "eval_freq": ("eval_every",), "save_freq": ("checkpoint_every",), "best_model_save_path": ("best_checkpoint",),
    "tensorboard_log": ("tensorboard",),
}  # fmt: skip
"""What a word of theirs may be called here; which of several depends on the algorithm."""


def hinted(what: str, of: str, name: str, known: Iterable[str]) -> UsageError:
    """The error about a word that is none of `known`: what it is called here, otherwise what is near it."""
    there = set(known)
    here = [word for word in HERE.get(name, ()) if word in there]
    if here:
        return UsageError(f"{of} has no {what} {name!r}: it is {' and '.join(f'`{word}`' for word in here)} here")
    return UnknownNameError(f"{what} of {of}", name, there)


def taken(options: Record) -> tuple[Record, bool | None, str | None]:
    """The hyperparameters among what a constructor was given, whether to show progress, and where TensorBoard looks.

    `verbose` and `tensorboard_log` belong to `learn` here, and are kept for it.
    """
    rest = dict(options)
    verbose, log = rest.pop("verbose", None), rest.pop("tensorboard_log", None)
    return rest, None if verbose is None else bool(verbose), log


def seed_of(seed: int | None) -> int:
    """A seed; None draws one."""
    return secrets.randbelow(HELD_OUT_START) if seed is None else seed


def learning(others: Record, total_steps: Any, progress: bool | None, known: Iterable[str]) -> tuple[Any, bool | None]:
    """Steps and whether to show progress, where `learn` was told so in other words."""
    words = dict(others)
    total_steps = words.pop("total_timesteps", total_steps)
    progress = words.pop("progress_bar", progress)
    if words:
        raise hinted("argument", "learn", next(iter(words)), {*known, "total_steps", "total_timesteps"})
    return total_steps, progress
