"""The one list of algorithms: what they are called, where their learners are, and what they can do.

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

from typing import TYPE_CHECKING, Any, NamedTuple

from mileage._errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from mileage.contracts import Learner


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
    ("td3", "Twin delayed policy gradient", "td3", False),
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
        torch_home: of its learner on torch, a `mileage.algorithms.torch.learner.TorchLearner`.
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
    from mileage._places import load

    place, _, name = home.rpartition(":")
    found = vars(load(place, "algorithm")).get(name)
    if found is None:
        raise UsageError(f"{place!r} has no class {name!r}")
    return found
