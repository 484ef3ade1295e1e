"""Where a policy comes from, as text that another process can be told; files of ONNX and TorchScript."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from mileage.errors import CheckpointError, MissingExtraError, UnknownNameError, UsageError
from mileage.external.exam.actors import Actor, Called
from mileage.external.exam.protocol import ProgramActor
from mileage.records import Record
from mileage.types import I64, Action, Array, Observation
from mileage.user_code import load as load_module

# --- Policies in files that say by themselves how they compute: ONNX and TorchScript ---
_ANSWERS = ("actions", "action", "logits")
_NUMPY = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64,
          "tensor(uint8)": np.uint8, "tensor(float16)": np.float16}  # fmt: skip


class OnnxActor(Actor):
    """An ONNX file: its one input is a batch of observations, its answer the output called `actions`, or the first.

    Discrete actions are numbers, or scores of every action; actions are drawn by an output called `logits`. What the
    network normalises with is in the file, frozen.
    """

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtraError("a policy in ONNX", "onnx") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the library raises classes of its own for each way a file can be wrong
            raise CheckpointError(f"{path} cannot be read as ONNX: {str(error).splitlines()[0]}") from None
        inputs, outputs = self._session.get_inputs(), [each.name for each in self._session.get_outputs()]
        if len(inputs) != 1:
            names = ", ".join(each.name for each in inputs)
            raise CheckpointError(f"{path} must have one input, the observations, not {len(inputs)} ({names})")
        (self._input,) = inputs
        self._best = self._answer = next((name for name in _ANSWERS if name in outputs), outputs[0])
        self.samples = "logits" in outputs
        if self._input.type not in _NUMPY:
            raise CheckpointError(f"{path} wants observations of {self._input.type}, which environments do not show")
        self._type = _NUMPY[self._input.type]
        batch = self._input.shape[0] if self._input.shape else None
        self._at_once = batch if isinstance(batch, int) else None

    def begin(self, episodes: int, deterministic: bool) -> None:
        """Choose the output that is asked."""
        self._answer = self._best if deterministic else "logits"

    def act(self, observations: Observation, episodes: I64) -> Action:
        """Run the network, in the batches that it was exported for."""
        rows = np.ascontiguousarray(_one_array(observations), self._type)
        size = self._at_once or len(rows)
        if len(rows) == size:
            return self._run(rows)
        parts = []
        for first in range(0, len(rows), size):
            part = rows[first : first + size]
            short = size - len(part)
            full = np.concatenate([part, np.repeat(part[-1:], short, axis=0)]) if short else part
            parts.append(self._run(full)[: len(part)])
        return np.concatenate(parts)

    def _run(self, rows: Array) -> Array:
        try:
            found: Array = np.asarray(self._session.run([self._answer], {self._input.name: rows})[0])
        except Exception as error:
            raise UsageError(f"the policy does not take these observations: {str(error).splitlines()[0]}") from None
        return found


class TorchScriptActor(Actor):
    """A TorchScript file: called with a batch of observations it answers with actions, or a tuple that begins so."""

    samples = False

    def __init__(self, path: Path) -> None:
        try:
            import torch
        except ImportError:
            raise MissingExtraError("a policy in TorchScript", "torch") from None
        self._torch: Any = torch
        self._torch.set_num_threads(1)
        try:
            self._module = self._torch.jit.load(str(path), map_location="cpu").eval()
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read as TorchScript: {str(error).splitlines()[0]}") from None

    def act(self, observations: Observation, episodes: I64) -> Action:
        """Call the module."""
        with self._torch.inference_mode():
            rows = self._torch.from_numpy(np.ascontiguousarray(_one_array(observations)))
            try:
                answer = self._module(rows)
            except RuntimeError as error:
                said = str(error).strip().splitlines()[-1]
                raise UsageError(f"the policy does not take these observations: {said}") from None
        return (answer[0] if isinstance(answer, tuple) else answer).numpy()


def _one_array(observations: Observation) -> Array:
    if isinstance(observations, dict | tuple):
        raise UsageError("a policy in a file sees one array: this environment shows several")
    return np.asarray(observations)


_TORCHSCRIPT = (".pt", ".pth", ".ts", ".jit", ".torchscript")


class SourceKind(StrEnum):
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
class PolicySource:
    """A policy by name."""

    kind: SourceKind
    place: str
    """Path, command, or `module:name`."""
    loader: str | None = None
    """`module:name` of the function that reads the file, where it takes one."""

    @classmethod
    def parse(cls, text: str | Path, loader: str | None = None) -> PolicySource:
        """The policy that a user means.

        A file by its ending (.onnx, .pt, .safetensors) or the directory of a run, `file.py:function` or
        `package.module:function`, or `program: COMMAND`. With `loader`, any file.
        """
        name = str(text)
        if loader is not None:
            return cls(SourceKind.LOADED, name, loader)
        if name.startswith("program:"):
            return cls(SourceKind.PROGRAM, name.removeprefix("program:").strip())
        path = Path(name)
        kinds = {".onnx": SourceKind.ONNX, ".safetensors": SourceKind.CHECKPOINT} | dict.fromkeys(
            _TORCHSCRIPT, SourceKind.TORCHSCRIPT
        )
        if path.suffix in kinds:
            return cls(kinds[path.suffix], name)
        if path.is_dir():
            return cls(SourceKind.CHECKPOINT, str(path / "checkpoint.safetensors"))
        if ":" in name:
            return cls(SourceKind.FUNCTION, name)
        raise UsageError(
            f"policy {name!r} is none: give a file that ends in .onnx, .pt or .safetensors, file.py:function, "
            "'program: COMMAND', or any file with its adapter"
        )

    def as_dict(self) -> Record:
        """As JSON has it."""
        return {"kind": str(self.kind), "place": self.place, "loader": self.loader}

    @classmethod
    def from_dict(cls, values: Record) -> PolicySource:
        """The source whose `as_dict` is `values`."""
        return cls(SourceKind(values["kind"]), values["place"], values.get("loader"))

    def open(self, deterministic: bool) -> Actor:
        """The actor; a checkpoint of ours has none, as it is evaluated as it always is."""
        if self.kind is SourceKind.PROGRAM:
            return ProgramActor(self.place)
        if self.kind is SourceKind.FUNCTION:
            return as_actor(_function(self.place))
        path = Path(self.place)
        if not path.exists():
            raise UsageError(f"policy {self.place} does not exist")
        if self.kind is SourceKind.LOADED:
            assert self.loader is not None
            read = _function(self.loader)
            takes = "deterministic" in inspect.signature(read).parameters
            return as_actor(read(str(path), deterministic=deterministic) if takes else read(str(path)))
        return OnnxActor(path) if self.kind is SourceKind.ONNX else TorchScriptActor(path)


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
