"""One way to make any environment."""

from __future__ import annotations

from typing import Any

from mileage.contracts import EnvSpec, VectorEnv
from mileage.envs.registry import resolve


def make_vec(
    env: EnvSpec | str, n_envs: int, *, seed: int = 0, threads: int | None = None, processes: bool = False,
    **kwargs: Any,
) -> VectorEnv:  # fmt: skip
    """A vector environment of whatever `resolve` accepts: native if there is a native one, bridged otherwise.

    `threads` concerns native and MuJoCo environments, `processes` bridged ones; `kwargs` go to Gymnasium's constructor.
    """
    return resolve(env, **kwargs).vector(n_envs, seed=seed, threads=threads, processes=processes)
