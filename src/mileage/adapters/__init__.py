"""Frameworks of others as runs of the ledger: a file for each, a line or two in the user's script.

    from mileage.adapters import stable_baselines3
    with stable_baselines3.recorded(model, panel="CartPole-v1", target="mean_return>=475") as callback:
        model.learn(100_000, callback=callback)

Nothing of a framework is imported before its own module is.
"""

from __future__ import annotations

from mileage._errors import UnknownNameError

_LOADERS: dict[str, str] = {}
"""Which function reads a framework's checkpoint as a policy, by the name of the adapter."""


def loader_of(adapter: str) -> str:
    """`module:function` that reads the checkpoints of a framework; a name of that form is one itself."""
    if ":" in adapter:
        return adapter
    if adapter not in _LOADERS:
        raise UnknownNameError("adapter with checkpoints", adapter, _LOADERS)
    return _LOADERS[adapter]
