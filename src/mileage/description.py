"""How a learner describes what it does, for whoever measures it: calls, their stages, their work.

A profiler that asks needs to know no algorithm by name and no field of it: it gets functions that make the same calls
again, in whole and in part, and numbers that say how much there is to do. All of it is optional but `work`: what a
description leaves out is not measured.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple

from mileage.types import Team

Task = Callable[[], object]
"""Does something that can be done again."""

ACT, VALUE, UPDATE = "choose actions, own number", "values, own number", "one whole update"
"""Usual names of single operations: acting and valuing for all environments, all that one iteration learns."""


class Layer(enum.StrEnum):
    """Layers of software that the time of an iteration is spent in."""

    NATIVE = "native"
    BLAS = "BLAS"
    TORCH = "torch"
    PYTHON = "Python"
    ENVIRONMENT = "environment"
    WAITING = "waiting"


class Product(NamedTuple):
    """A matrix product out[m, n] = a[m, k] @ b[k, n]."""

    left: int
    """1 if the left factor is transposed."""
    right: int
    """1 if the right factor is transposed."""
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Work:
    """The work of one entry of a phase: `pieces` times `products`, `repeats` times one after the other."""

    products: tuple[Product, ...]
    """Of one piece; pieces are shared out over threads."""
    pieces: int
    repeats: float
    """Rounds per entry of the phase; a fraction where a part runs only now and then."""
    bytes_touched: float
    """Read and written per entry, whether they come from memory or from a cache."""
    working_set: float = 0.0
    """Bytes that are used again and again; where they fit into the caches, memory is no limit."""
    networks: int = 1
    """Networks whose products follow each other in a piece and may run on threads of their own."""

    @property
    def flops(self) -> float:
        """Floating-point operations of the products per entry."""
        return 2.0 * self.pieces * self.repeats * sum(each.m * each.n * each.k for each in self.products)

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes_touched if self.bytes_touched else 0.0


@dataclass(frozen=True)
class Boundary:
    """A callable through which an iteration leaves Python: attribute `name` of `owner`, looked up at every call."""

    owner: object
    name: str
    label: str
    """What the call is called; empty for a team, which runs any kernel: its calls are called after the kernel."""
    layer: Layer


@dataclass(frozen=True)
class Stages:
    """How a call can be made to stop early."""

    names: tuple[str, ...]
    """In order; the first is what runs even if nothing is done."""
    run: Callable[[int | None, int], object]
    """`run(n, turn)` makes the call up to stage `n`, or whole if that is None, as number `turn` of a period."""
    period: int = 1
    """Calls in which every stage has its turn."""
    last_is_rare: bool = False
    """Whether all stages but the last are part of every call, and the last one only of the period's last call."""


@dataclass(frozen=True)
class Parts:
    """What a fused rollout consists of: each part can be run alone on what a rollout has stored."""

    environments: Task
    inference: Task
    storage: Task
    rewind: Callable[[str], object]
    """Puts back what a part begins with, given its name; with any other name, what the whole begins with."""


@dataclass(frozen=True)
class Call:
    """A native call that is most of a phase, and how to make it again."""

    label: str
    """Its name in a trace."""
    run: Task
    pieces: int
    """What its threads share out."""
    stages: Stages | None = None
    parts: Parts | None = None


@dataclass(frozen=True)
class Buffer:
    """Memory for one purpose: bytes that the configuration predicts, and bytes that were allocated."""

    name: str
    predicted_bytes: int
    seen_bytes: int


@dataclass(frozen=True)
class Variant:
    """Other settings of the same learner, and what they change: ready to be timed beside its own."""

    fix: str
    """What kind of change this is: `minibatch`, `batch`, `n_envs`."""
    settings: Mapping[str, int]
    phase: str
    """Whose time changes."""
    entries: float
    """Of the phase under these settings, for one under the learner's own: as many as learn from as many samples."""
    own: Task
    """What an entry of the phase does now."""
    other: Callable[[], AbstractContextManager[Task]]
    """Builds what it does under these settings."""


@dataclass(frozen=True)
class Description:
    """What one iteration of a learner consists of. Whatever runs, runs within `paused`."""

    work: Mapping[str, Work] = field(default_factory=dict)
    """Of every phase that has matrix products, by the phase's name."""
    boundaries: tuple[Boundary, ...] = ()
    """Every call of an iteration that leaves Python for native code or for the environment."""
    calls: Mapping[str, Call] = field(default_factory=dict)
    """The native call that is most of a phase, by the phase's name."""
    team: Team | None = None
    """The threads that calls run on."""
    on_team: Callable[[Team], AbstractContextManager[object]] | None = None
    """Lets calls run on another team; None where threads are bound to what they do."""
    paused: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    """Within it, nothing that is called is learned from: at its end all is as it was."""
    methods: tuple[Boundary, ...] = ()
    """Of a learner on torch: methods, labelled with the stage of the update that the time in them belongs to."""
    operations: Mapping[str, Task] = field(default_factory=dict)
    """Single operations that are worth timing alone."""
    buffers: tuple[Buffer, ...] = ()
    variants: tuple[Variant, ...] = ()
    has_native_twin: bool = False
    """Whether the native back end has the same algorithm with the same networks."""
