"""What an algorithm runs on: native kernels, or torch, which may see the environment in another form."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING

from mileage._errors import MissingExtraError, UnknownNameError, UsageError, require
from mileage._records import Record
from mileage.contracts import EnvSpec, Learner, LearnerConfig, Policy, Team, VectorEnv

if TYPE_CHECKING:
    from torch import nn

    from mileage.algorithms.registry import Algorithm

    PolicyChoice = str | nn.Module | Callable[[EnvSpec], nn.Module] | None

BACKENDS = ("auto", "native", "torch")
# Names of built-in networks, those of Stable-Baselines3 among them.
_COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""Of `torch.compile`."""
NETWORKS = {"mlp": "mlp", "cnn": "cnn", "MlpPolicy": "mlp", "CnnPolicy": "cnn", "MultiInputPolicy": "cnn"}


def is_native(policy: PolicyChoice) -> bool:
    """Whether the native back end has this network."""
    return policy is None or (isinstance(policy, str) and NETWORKS.get(policy) == "mlp")


def choose_backend(
    algorithm: Algorithm,
    backend: str,
    policy: PolicyChoice,
    device: str,
    compile: bool | str,  # noqa: A002
) -> Backend:
    """The back end that was asked for; `auto` is native unless only torch has the policy.

    Args:
        algorithm: what is to run.
        backend: one of `BACKENDS`.
        policy: "mlp", "cnn", a `torch.nn.Module`, or a function that makes one from the environment's description.
        device: "auto", "cpu", "cuda" or another that torch knows.
        compile: whether to use `torch.compile`, or the mode to use it in.
    """
    if backend not in BACKENDS:
        raise UnknownNameError("backend", backend, BACKENDS)
    if backend == "torch" or (backend == "auto" and not is_native(policy)):
        return TorchBackend(algorithm, policy, device, compile)
    if not is_native(policy) or compile or device not in ("auto", "cpu"):
        raise UsageError("policy, device and compile are for torch: use backend='torch'")
    return NativeBackend(algorithm)


class Backend(abc.ABC):
    """An algorithm on one of its back ends."""

    name: str
    policy_name: str
    """`mlp`, `cnn`, or `module` for a user's own."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.learner_class: type[Learner] = algorithm.learner(self.name)

    def seen(self, spec: EnvSpec) -> EnvSpec:
        """The environment with observations in the form that the network wants: vectors, unless told otherwise."""
        return spec.flat()

    def make_policy(self, config: LearnerConfig, spec: EnvSpec, seed: int) -> Policy:
        """The networks for an environment."""
        self.learner_class.check_spec(spec)
        return self.learner_class.make_policy(config, spec, seed)

    def make_learner(self, config: LearnerConfig, env: VectorEnv, policy: Policy, team: Team, seed: int) -> Learner:
        """The algorithm on built parts."""
        return self.learner_class(config, env, policy, team, seed)


class NativeBackend(Backend):
    """Kernels of the library's own, or whatever a third party's learner runs on."""

    name = "native"
    policy_name = "mlp"


class TorchBackend(Backend):
    """Any torch module, on any device that torch knows."""

    name = "torch"

    def __init__(
        self,
        algorithm: Algorithm,
        policy: PolicyChoice,
        device: str,
        compile: bool | str,  # noqa: A002
    ) -> None:
        if algorithm.torch_home is None:
            algorithm.learner(self.name)  # says that there is none, whether or not torch is installed
        try:
            import torch  # noqa: F401 (what is missing, if anything is)
        except ImportError as error:
            raise MissingExtraError("the torch back end", "torch") from error
        from mileage.policies.torch.tensors import resolve_device

        super().__init__(algorithm)
        self._algorithm = algorithm.name
        if isinstance(policy, str) and policy not in NETWORKS:
            raise UnknownNameError("policy", policy, NETWORKS)
        known = policy is None or isinstance(policy, str) or callable(policy)
        require(known, "policy", policy, "'mlp', 'cnn' or a torch.nn.Module")
        self._network = "mlp" if policy is None else NETWORKS[policy] if isinstance(policy, str) else policy
        self.device = resolve_device(device)
        self.compile_mode = None if compile is False else "default" if compile is True else compile
        known = self.compile_mode is None or self.compile_mode in _COMPILE_MODES
        require(known, "compile", compile, f"true, false or one of {', '.join(_COMPILE_MODES)}")
        self.policy_name = self._network if isinstance(self._network, str) else "module"

    def seen(self, spec: EnvSpec) -> EnvSpec:
        """The environment with observations flat for `mlp`, else as it gives them."""
        from mileage.envs.native.env import NativeEnv

        if self.policy_name == "mlp" or isinstance(spec, NativeEnv):
            return spec.flat()
        from mileage.envs.gymnasium.structured import structured

        found: EnvSpec = structured(spec)
        return found

    def make_policy(self, config: LearnerConfig, spec: EnvSpec, seed: int) -> Policy:
        """The networks for an environment; `mlp` starts with the weights of the native policy, others from `seed`."""
        from mileage.algorithms.torch.learner import TorchLearner

        kind = self.learner_class
        if not issubclass(kind, TorchLearner):
            raise UsageError(f"{kind.__name__} must derive from TorchLearner to have a torch back end")
        kind.check_spec(spec)
        options: Record = {"device": self.device, "compile_mode": self.compile_mode}
        return kind.make_policy(config, spec, seed, algorithm=self._algorithm, network=self._network, **options)
