"""What a race is: one panel, one target, arms, seeds and budgets, read from a TOML file and checked as a whole."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from mileage.envs.registry import resolve
from mileage.errors import UnknownNameError, UsageError
from mileage.ledger.panels import Panel
from mileage.ledger.prices import Price, freeze_price
from mileage.ledger.targets import Target
from mileage.measure.verdict import LOOKS
from mileage.records import ReadRecord, Record
from mileage.seeding import check_training_seed
from mileage.training import evaluation

MOST_ARMS = 20
MOST_SEEDS = LOOKS[-1]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,59}")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
PLACEHOLDERS = ("seed", "threads", "env", "python")
"""What a word of a command may name in braces."""
_REVISION = re.compile(r"[0-9A-Za-z][0-9A-Za-z._/-]{0,199}")
_LONGEST = 1_000_000


class TunedBy(StrEnum):
    """Who chose the settings of an arm."""

    DEFAULTS = "defaults"
    """Nobody: they are the library's own."""
    AUTHORS = "its authors"
    """Who made the library, for this task."""
    US = "us"
    """Who runs the race."""


@dataclass(frozen=True)
class ArmSpec:
    """One arm as the file has it: a recipe of ours, or a command."""

    name: str
    tuned_by: TunedBy
    """By whom; there is no default."""
    algorithm: str | None = None
    """Of a recipe."""
    settings: ReadRecord = field(default_factory=dict)
    """Hyperparameters of a recipe by name."""
    preset: str = "default"
    """Of a recipe: `default`, or `none`."""
    steps: int | None = None
    """Environment steps after which a recipe gives up."""
    eval_every: int | None = None
    """Environment steps between the evaluations of a recipe."""
    command: tuple[str, ...] = ()
    """Program and arguments; words may name {seed}, {threads}, {env} and {python}."""
    threads: int | None = None
    """How many the arm may use; all cores by default."""
    repository: str | None = None
    """Git repository of the code that is raced; of a recipe, mileage's."""
    revision: str | None = None
    """The revision of it."""
    environment: ReadRecord = field(default_factory=dict)
    """Variables of a command."""

    @property
    def kind(self) -> str:
        """`recipe` or `command`."""
        return "recipe" if self.algorithm is not None else "command"

    @property
    def about(self) -> str:
        """In a few words."""
        what = self.algorithm or "a program of its own"
        return what + (f" at {self.revision}" if self.revision else "")


@dataclass(frozen=True)
class RaceLimits:
    """Hard budgets: what they are reached by is ended."""

    seconds: float = math.inf
    """Of all attempts together."""
    dollars: float = math.inf
    """Of all attempts together, at the price of the race."""
    attempt_seconds: float = math.inf
    """Of one attempt; one that is ended by it has failed."""


@dataclass(frozen=True)
class RaceSpec:
    """A race as it is planned."""

    name: str
    env: str
    target: Target
    arms: tuple[ArmSpec, ...]
    episodes: int = 100
    """Of the held-out panel."""
    success: str | None = None
    env_kwargs: ReadRecord = field(default_factory=dict)
    seeds: int = 5
    """Every arm is trained with so many."""
    most_seeds: int = 5
    """Arms whose verdict is open get more, up to so many."""
    first_seed: int = 0
    reference: str = ""
    """The arm that the others are compared with; the first by default."""
    order_seed: int = 0
    """Of the order in which arms take their turns."""
    price: str | None = None
    """Dollars an hour."""
    instance: str | None = None
    limits: RaceLimits = field(default_factory=RaceLimits)
    directory: Path = field(default_factory=Path)
    """Where commands are started: that of the file."""

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        _check(1 < len(names) <= MOST_ARMS, "arm", f"given 2 to {MOST_ARMS} times", len(names))
        _check(len(set(names)) == len(names), "name of an arm", "given once", _repeated(names))
        object.__setattr__(self, "reference", self.reference or names[0])
        if self.reference not in names:
            raise UnknownNameError("arm", self.reference, names)
        planned, given = "seeds and most_seeds", (self.seeds, self.most_seeds)
        ordered = 1 <= self.seeds <= self.most_seeds <= MOST_SEEDS
        _check(ordered, planned, f"from 1 to {MOST_SEEDS}, the second not below the first", given)
        if self.sequential:
            looks = ", ".join(map(str, LOOKS))
            _check(set(given) <= set(LOOKS), planned, f"planned looks ({looks}) where they differ", given)
        check_training_seed(self.first_seed)
        check_training_seed(self.first_seed + self.most_seeds)
        if math.isfinite(self.limits.dollars) and self.frozen_price.usd_per_hour == 0:
            raise UsageError("dollars of [budget] need a price: give [race] price, or instance")
        for arm in self.arms:
            _check_arm(arm)

    @property
    def sequential(self) -> bool:
        """Whether seeds are added where the verdict is open."""
        return self.most_seeds > self.seeds

    @property
    def looks(self) -> tuple[int, ...]:
        """Seeds per arm at which verdicts are looked at."""
        return tuple(look for look in LOOKS if self.seeds <= look <= self.most_seeds) or (self.seeds,)

    @cached_property
    def frozen_price(self) -> Price:
        """What an hour costs, or that no price is set."""
        return freeze_price(self.price, self.instance)

    @cached_property
    def panel(self) -> Panel:
        """The exam of all arms."""
        spec = resolve(self.env, **self.env_kwargs)
        return evaluation.default_panel(self.env, spec, self.env_kwargs, self.target, self.episodes, self.success)

    def arm(self, name: str) -> ArmSpec:
        """The arm called `name`."""
        return next(arm for arm in self.arms if arm.name == name)

    def as_dict(self) -> Record:
        """The plan as plain JSON values; budgets, prices and directories do not change what is measured."""
        plain = dataclasses.asdict(self)
        for name in ("limits", "directory", "price", "instance"):
            del plain[name]
        # An endless limit is what no JSON can hold.
        limit = self.limits.attempt_seconds
        return plain | {"target": str(self.target), "attempt_seconds": limit if math.isfinite(limit) else None}

    @cached_property
    def digest(self) -> str:
        """The same for the same race, wherever it runs."""
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def read(cls, path: Path) -> RaceSpec:
        """The race that a TOML file describes; UsageError in one sentence if it does not."""
        try:
            if path.stat().st_size > _LONGEST:
                raise UsageError(f"{path} is longer than {_LONGEST:,} bytes: a race is described in fewer")
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UsageError(f"{path} cannot be read: {reason}") from None
        try:
            document = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise UsageError(f"{path} is not TOML: {error}") from None
        return cls.of(document, path.parent)

    @classmethod
    def of(cls, document: ReadRecord, directory: Path = Path()) -> RaceSpec:
        """The race that a TOML document describes."""
        race = _Table("[race]", document.get("race"))
        _Table("the file", document).only("race", "budget", "arm")
        budget = _Table("[budget]", document.get("budget", {}))
        arms = document.get("arm")
        if not isinstance(arms, list):
            raise UsageError("a race needs [[arm]] tables: one for each thing that is compared")
        seeds = race.whole("seeds", 5, 1)
        spec = cls(
            name=_name("name of [race]", race.text("name")),
            env=race.text("env"),
            target=Target.parse(race.text("target")),
            arms=tuple(_arm(each) for each in arms),
            episodes=race.whole("episodes", 100, 1),
            success=race.text("success", None),
            env_kwargs=race.table("env_kwargs"),
            seeds=seeds,
            most_seeds=race.whole("most_seeds", seeds, 1),
            first_seed=race.whole("first_seed", 0, 0),
            reference=race.text("reference", ""),
            order_seed=race.whole("order_seed", 0, 0),
            price=race.price("price"),
            instance=race.text("instance", None),
            limits=RaceLimits(*(budget.positive(name) for name in ("seconds", "dollars", "attempt_seconds"))),
            directory=directory.absolute(),
        )
        race.only(*race.asked)
        budget.only(*budget.asked)
        return spec


Default = TypeVar("Default")
_REQUIRED: Any = object()


class _Table:
    """A table of the file, of which every value is checked when it is asked for."""

    def __init__(self, name: str, values: object) -> None:
        if not isinstance(values, dict):
            raise UsageError(f"a race needs {name}: a table of values")
        self.name, self.values = name, values
        self.asked: set[str] = set()

    def only(self, *known: str) -> None:
        for key in self.values:
            if key not in known:
                raise UnknownNameError(f"key of {self.name}", str(key)[:80], known)

    def get(self, key: str, default: object) -> object:
        self.asked.add(key)
        if key not in self.values and default is _REQUIRED:
            raise UsageError(f"{self.name} needs {key}")
        return self.values.get(key, default)

    def text(self, key: str, default: Default = _REQUIRED) -> str | Default:
        found = self.get(key, default)
        if key in self.values and (not isinstance(found, str) or not found or "\0" in found):
            raise UsageError(f"{key} of {self.name} must be text, not {found!r}")
        return found  # type: ignore[return-value]

    def whole(self, key: str, default: int | None, least: int) -> Any:
        found = self.get(key, default)
        if key in self.values and (not isinstance(found, int) or isinstance(found, bool) or not least <= found < 2**53):
            raise UsageError(f"{key} of {self.name} must be a whole number of at least {least}, not {found!r}")
        return found

    def positive(self, key: str) -> float:
        found = self.get(key, math.inf)
        right = isinstance(found, int | float) and not isinstance(found, bool) and found > 0
        if not right:
            raise UsageError(f"{key} of {self.name} must be a number above 0, not {found!r}")
        return float(found)  # type: ignore[arg-type]

    def price(self, key: str) -> str | None:
        found = self.get(key, None)
        if found is not None and (isinstance(found, bool) or not isinstance(found, str | int | float)):
            raise UsageError(f"{key} of {self.name} must be dollars an hour, not {found!r}")
        return None if found is None else str(found)

    def table(self, key: str) -> Record:
        found = self.get(key, {})
        if not isinstance(found, dict):
            raise UsageError(f"{key} of {self.name} must be a table, not {found!r}")
        try:
            json.dumps(found, allow_nan=False)
        except (TypeError, ValueError):
            raise UsageError(f"{key} of {self.name} must hold text, numbers, true, false and lists alone") from None
        return found

    def words(self, key: str) -> tuple[str, ...]:
        found = self.get(key, [])
        if not isinstance(found, list) or not all(isinstance(word, str) and "\0" not in word for word in found):
            raise UsageError(f"{key} of {self.name} must be a list of words, the program first")
        return tuple(found)


def _arm(values: object) -> ArmSpec:
    given = values.get("name") if isinstance(values, dict) else None
    table = _Table(f"arm {str(given)[:60]!r}" if isinstance(given, str) else "[[arm]]", values)
    tuned = table.text("tuned_by")
    if tuned not in set(TunedBy):
        allowed = ", ".join(repr(str(each)) for each in TunedBy)
        raise UsageError(f"tuned_by of {table.name} must be one of {allowed}, not {tuned!r}")
    variables = table.table("environment")
    for name, value in variables.items():
        if not isinstance(value, str) or "=" in name or not name or "\0" in name + value:
            raise UsageError(f"environment of {table.name} must map names to texts, not {name!r} to {value!r}")
    arm = ArmSpec(
        name=_name(f"name of {table.name}", table.text("name")),
        tuned_by=TunedBy(tuned),
        algorithm=table.text("algorithm", None),
        settings=table.table("settings"),
        preset=table.text("preset", "default"),
        steps=table.whole("steps", None, 1),
        eval_every=table.whole("eval_every", None, 1),
        command=table.words("command"),
        threads=table.whole("threads", None, 1),
        repository=table.text("repository", None),
        revision=table.text("revision", None),
        environment=variables,
    )
    table.only(*table.asked)
    return arm


def _check_arm(arm: ArmSpec) -> None:
    """UsageError if an arm is neither a recipe nor a command, or says what only the other can be told."""
    if (arm.algorithm is None) == (not arm.command):
        raise UsageError(f"arm {arm.name!r} needs either algorithm, for a recipe, or command")
    if arm.algorithm is not None:
        from mileage.algorithms.registry import find_algorithm

        find_algorithm(arm.algorithm)
        if arm.environment:
            raise UsageError(f"environment of arm {arm.name!r} must be left out: it is for a command")
    elif arm.settings or arm.steps or arm.eval_every or arm.preset != "default":
        raise UsageError(
            f"settings, preset, steps and eval_every of arm {arm.name!r} must be left out: its command has them"
        )
    unknown = [each for word in arm.command for each in _PLACEHOLDER.findall(word) if each not in PLACEHOLDERS]
    if unknown:
        raise UnknownNameError(f"placeholder in the command of arm {arm.name!r}", unknown[0], PLACEHOLDERS)
    if arm.command and not any("{seed}" in word for word in arm.command):
        raise UsageError(f"command of arm {arm.name!r} must say {{seed}} somewhere: attempts differ in their seed")
    if (arm.revision is None) != (arm.repository is None):
        raise UsageError(f"arm {arm.name!r} needs both repository and revision, or neither")
    if arm.revision is not None and _REVISION.fullmatch(arm.revision) is None:
        raise UsageError(f"revision of arm {arm.name!r} must be a git revision, not {arm.revision!r}")


def filled(command: tuple[str, ...], **values: object) -> list[str]:
    """The words of a command with what they name in braces."""
    return [_PLACEHOLDER.sub(lambda match: str(values[match[1]]), word) for word in command]


def _name(what: str, text: str) -> str:
    _check(_NAME.fullmatch(text) is not None, what, "up to 60 letters, digits and . _ + -", text)
    return text


def _check(right: bool, what: str, need: str, given: object) -> None:
    if not right:
        raise UsageError(f"{what} must be {need}, not {given!r}")


def _repeated(names: list[str]) -> str:
    return next((name for name in names if names.count(name) > 1), "")
