"""The algorithms on any torch module, and what their learners share."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from mileage.contracts import EnvSpec, Learner
from mileage.policies.torch.policy import Chosen, TorchPolicy, build_policy
from mileage.policies.torch.tensors import resolve_device


class TorchLearner(Learner):
    """A learner on torch: configured like its native sibling, with any module."""

    Native: ClassVar[type[Learner]]
    """The sibling."""
    Policy: ClassVar[type[TorchPolicy]]
    """What a module must be."""

    @classmethod
    def check_spec(cls, spec: EnvSpec) -> None:
        """UsageError if this algorithm cannot learn in such an environment."""
        cls.Native.check_spec(spec)

    @classmethod
    def make_policy(
        cls, config: Any, spec: EnvSpec, seed: int, *, algorithm: str = "", network: Chosen = "mlp",
        device: torch.device | None = None, compile_mode: str | None = None,
    ) -> TorchPolicy:  # fmt: skip
        """The networks for an environment; `mlp` starts with the weights of the native policy, others from `seed`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            native = cls.Native.make_policy(config, spec, seed) if network == "mlp" else None
            where = resolve_device("auto") if device is None else device
            return build_policy(cls.Policy, algorithm, network, native, config, spec, where, compile_mode)
