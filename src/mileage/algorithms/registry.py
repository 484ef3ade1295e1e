"""The one list of algorithms: names, learners, abilities, and the back ends (native, torch) they run on.

Everything that names algorithms is made from it: the agent classes, `mileage.__all__`, the command line's help, the
documentation, the choice of a back end. Homes are named, not imported, so that listing algorithms costs nothing.

An algorithm of yours is a class that derives from `mileage.contracts.Learner`. Register it, and it has an agent class,
presets of its own in a TOML file, and a name on the command line:

    mileage.register_algorithm("mine", "my_package.mine:Mine", title="My own algorithm")
    agent = mileage.agent_class("mine")("CartPole-v1")

From the shell its home is its name, as nothing can be registered there first; a file will do as well:

    mileage train my_package.mine:Mine CartPole-v1
    mileage train path/to/mine.py:Mine CartPole-v1
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from mileage.errors import MissingExtraError, UnknownNameError, UsageError, require
from mileage.records import Record

if TYPE_CHECKING:
    from torch import nn

    from mileage.contracts import EnvSpec, Learner, LearnerConfig, Policy, VectorEnv
    from mileage.types import Team


class Algorithm(NamedTuple):
    """An algorithm: its names and homes."""

    name: str
    """What users type: `ppo`."""
    home: str
    """Its learner on native kernels, or whatever it runs on: "package.module:Class"."""
    title: str
    """Its name in words, in one line."""
    torch_home: str | None = None
    """Its learner on torch; None if it has none."""
    on_policy: bool = False
    """Whether it learns from what it has just collected, rather than from a replay buffer."""

    @property
    def class_name(self) -> str:
        """The name of its agent class: `PPO`."""
        return self.home.rpartition(":")[2]

    @property
    def module(self) -> str:
        """The module that its learner is in, and its configuration."""
        return self.home.rpartition(":")[0]

    def learner(self, backend: str = "native") -> type[Learner]:
        """The learner's class, imported when it is first needed."""
        home = self.torch_home if backend == "torch" else self.home
        if home is None:
            raise UsageError(
                f"{self.name} has no torch back end: leave backend, policy, device and compile as they are"
            )
        found: type[Learner] = _import(home)
        return found


_PACKAGE = "mileage.algorithms"
# Name, title, the module of its learner on torch if it has one, whether it is on-policy.
_BUILT_IN = (
    ("ppo", "Proximal policy optimisation", "on_policy", True),
    ("rpo", "Robust policy optimisation", "on_policy", True),
    ("a2c", "Advantage actor-critic", "on_policy", True),
    ("impala", "Actor-learner with V-trace", None, True),
    ("sac", "Soft actor-critic", "sac", False),
    ("td3", "Twin delayed policy gradient", "off_policy", False),
    ("dqn", "Deep Q-learning", "dqn", False),
)


def _built_in(name: str, title: str, torch_module: str | None, on_policy: bool) -> Algorithm:
    torch_home = f"{_PACKAGE}.torch.{torch_module}:Torch{name.upper()}" if torch_module else None
    return Algorithm(name, f"{_PACKAGE}.{name}:{name.upper()}", title, torch_home, on_policy)


_algorithms = {row[0]: _built_in(*row) for row in _BUILT_IN}
BUILT_IN = tuple(_algorithms.values())
"""The algorithms of the library, in the order in which they are listed."""


def register_algorithm(
    name: str, home: str, *, title: str = "", torch_home: str | None = None, on_policy: bool = False
) -> Algorithm:
    """Make a learner known under `name`; what you registered yourself may be registered again.

    Args:
        name: what users type, in small letters.
        home: "package.module:Class" or "path/to/file.py:Class" of a `mileage.contracts.Learner`.
        title: its name in words.
        torch_home: of its learner on torch, a `mileage.algorithms.torch.TorchLearner`.
        on_policy: whether it learns from what it has just collected, rather than from a replay buffer.
    """
    if any(each.name == name for each in BUILT_IN):
        raise UsageError(f"algorithm {name!r} is built in: choose another name")
    if not name or name != name.lower() or ":" in name:
        raise UsageError(f"name must be in small letters and without a colon, not {name!r}")
    found = Algorithm(name, _checked_home(home), title or home, torch_home, on_policy)
    _algorithms[name] = found
    return found


def algorithms() -> tuple[Algorithm, ...]:
    """All algorithms that are known now."""
    return tuple(_algorithms.values())


def find_algorithm(name: str) -> Algorithm:
    """The algorithm called `name`, in whatever case, or the learner at "package.module:Class" or "file.py:Class"."""
    if ":" in name:
        known = {each.home: each for each in _algorithms.values()}
        return known.get(name) or register_algorithm(name.rpartition(":")[2].lower(), name)
    try:
        return _algorithms[name.lower()]
    except KeyError:
        raise UnknownNameError("algorithm", name, _algorithms) from None


def names_in_words(separator: str = "or") -> str:
    """The names of the library's algorithms as an enumeration: "ppo, a2c or dqn"."""
    *first, last = (each.name for each in BUILT_IN)
    return f"{', '.join(first)} {separator} {last}"


def _checked_home(home: str) -> str:
    if not all(home.rpartition(":")):
        raise UsageError(f"home must be 'package.module:Class' or 'path/to/file.py:Class', not {home!r}")
    return home


def _import(home: str) -> Any:
    from mileage.user_code import load

    place, _, name = home.rpartition(":")
    found = vars(load(place, "algorithm")).get(name)
    if found is None:
        raise UsageError(f"{place!r} has no class {name!r}")
    return found


# --- What an algorithm runs on: native kernels, or torch, which may see the environment in another form ---
if TYPE_CHECKING:
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
        from mileage.envs.native.vector import NativeEnv

        if self.policy_name == "mlp" or isinstance(spec, NativeEnv):
            return spec.flat()
        from mileage.envs.gymnasium.structured import structured

        found: EnvSpec = structured(spec)
        return found

    def make_policy(self, config: LearnerConfig, spec: EnvSpec, seed: int) -> Policy:
        """The networks for an environment; `mlp` starts with the weights of the native policy, others from `seed`."""
        from mileage.algorithms.torch import TorchLearner

        kind = self.learner_class
        if not issubclass(kind, TorchLearner):
            raise UsageError(f"{kind.__name__} must derive from TorchLearner to have a torch back end")
        kind.check_spec(spec)
        options: Record = {"device": self.device, "compile_mode": self.compile_mode}
        return kind.make_policy(config, spec, seed, algorithm=self._algorithm, network=self._network, **options)
