"""Where a policy comes from, as text that another process can be told."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mileage._errors import UnknownNameError, UsageError
from mileage._places import load as load_module
from mileage._records import Record
from mileage.exam.actors import Actor, Called
from mileage.exam.files import OnnxActor, TorchScriptActor
from mileage.exam.program import ProgramActor

_TORCHSCRIPT = (".pt", ".pth", ".ts", ".jit", ".torchscript")


class Kind(StrEnum):
    """What a policy is made of."""

    ONNX = "onnx"
    TORCHSCRIPT = "torchscript"
    CHECKPOINT = "checkpoint"
    """One of our own."""
    PROGRAM = "program"
    """That speaks newline JSON."""
    FUNCTION = "function"
    """`file.py:name` or `package.module:name`: of a batch of observations."""
    LOADED = "loaded"
    """A file with the function that reads it: `function(path)`, or `function(path, deterministic=…)`."""


@dataclass(frozen=True)
class Source:
    """A policy by name."""

    kind: Kind
    place: str
    """Path, command, or `module:name`."""
    loader: str | None = None
    """`module:name` of the function that reads the file, where it takes one."""

    @classmethod
    def parse(cls, text: str | Path, loader: str | None = None) -> Source:
        """The policy that a user means.

        A file by its ending (.onnx, .pt, .safetensors) or the directory of a run, `file.py:function` or
        `package.module:function`, or `program: COMMAND`. With `loader`, any file.
        """
        name = str(text)
        if loader is not None:
            return cls(Kind.LOADED, name, loader)
        if name.startswith("program:"):
            return cls(Kind.PROGRAM, name.removeprefix("program:").strip())
        path = Path(name)
        kinds = {".onnx": Kind.ONNX, ".safetensors": Kind.CHECKPOINT} | dict.fromkeys(_TORCHSCRIPT, Kind.TORCHSCRIPT)
        if path.suffix in kinds:
            return cls(kinds[path.suffix], name)
        if path.is_dir():
            return cls(Kind.CHECKPOINT, str(path / "checkpoint.safetensors"))
        if ":" in name:
            return cls(Kind.FUNCTION, name)
        raise UsageError(
            f"policy {name!r} is none: give a file that ends in .onnx, .pt or .safetensors, file.py:function, "
            "'program: COMMAND', or any file with its adapter"
        )

    def as_dict(self) -> Record:
        """As JSON has it."""
        return {"kind": str(self.kind), "place": self.place, "loader": self.loader}

    @classmethod
    def from_dict(cls, values: Record) -> Source:
        """The source whose `as_dict` is `values`."""
        return cls(Kind(values["kind"]), values["place"], values.get("loader"))

    def open(self, deterministic: bool) -> Actor:
        """The actor; a checkpoint of ours has none, as it is evaluated as it always is."""
        if self.kind is Kind.PROGRAM:
            return ProgramActor(self.place)
        if self.kind is Kind.FUNCTION:
            return as_actor(_function(self.place))
        path = Path(self.place)
        if not path.exists():
            raise UsageError(f"policy {self.place} does not exist")
        if self.kind is Kind.LOADED:
            assert self.loader is not None
            read = _function(self.loader)
            takes = "deterministic" in inspect.signature(read).parameters
            return as_actor(read(str(path), deterministic=deterministic) if takes else read(str(path)))
        return OnnxActor(path) if self.kind is Kind.ONNX else TorchScriptActor(path)


def as_actor(policy: object) -> Actor:
    """An actor as it is, or a function as one."""
    return policy if isinstance(policy, Actor) else Called(policy)  # type: ignore[arg-type]


def _function(name: str) -> Callable[..., object]:
    place, _, attribute = name.rpartition(":")
    if not place:
        raise UsageError(f"{name!r} is not the name of a function: say which in which file, as in file.py:act")
    module = load_module(place, "policy")
    found = vars(module).get(attribute)
    if not callable(found):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UnknownNameError(f"function in {place!r}", attribute, names)
    return found  # type: ignore[no-any-return]
