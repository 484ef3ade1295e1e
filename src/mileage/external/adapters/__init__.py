"""Frameworks of others as runs of the ledger: a file for each, a line or two in the user's script.

    from mileage.external.adapters import stable_baselines3
    with stable_baselines3.recorded(model, panel="CartPole-v1", target="mean_return>=475") as callback:
        model.learn(100_000, callback=callback)

Nothing of a framework is imported before it is used.
"""

from __future__ import annotations

from mileage.errors import looked_up

ADAPTERS = {
    "stable_baselines3": ("stable_baselines3", "stable-baselines3"), "cleanrl": ("tyro", "cleanrl"),
    "rsl_rl": ("rsl_rl", "rsl-rl-lib"), "rl_games": ("rl_games", "rl-games"), "skrl": ("skrl", "skrl"),
    "brax": ("brax", "brax"), "rllib": ("ray.rllib", "'ray[rllib]'"), "torchrl": ("torchrl", "torchrl"),
    "tianshou": ("tianshou", "tianshou"), "trl": ("trl", "trl"), "pufferlib": ("pufferlib", "pufferlib"),
    "rltools": ("rltools", "rltools"),
}  # fmt: skip
"""By name: the framework's module, and what to install."""
_LOADERS = dict.fromkeys(
    ("stable_baselines3", "sb3", "sb3_contrib", "sbx"), "mileage.external.adapters.stable_baselines3:load_policy"
)
"""Which function reads a framework's checkpoint as a policy, by the name of the adapter."""


def loader_of(adapter: str) -> str:
    """`module:function` that reads the checkpoints of a framework; a name of that form is one itself."""
    if ":" in adapter:
        return adapter
    return looked_up("adapter with checkpoints", adapter, _LOADERS)
