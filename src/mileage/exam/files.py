"""Policies in files that say by themselves how they compute: ONNX and TorchScript."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mileage._errors import CheckpointError, MissingExtraError, UsageError
from mileage._types import I64, Array, Shown, Taken
from mileage.exam.actors import Actor

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

    def act(self, observations: Shown, episodes: I64) -> Taken:
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

    def act(self, observations: Shown, episodes: I64) -> Taken:
        """Call the module."""
        with self._torch.inference_mode():
            rows = self._torch.from_numpy(np.ascontiguousarray(_one_array(observations)))
            try:
                answer = self._module(rows)
            except RuntimeError as error:
                said = str(error).strip().splitlines()[-1]
                raise UsageError(f"the policy does not take these observations: {said}") from None
        return (answer[0] if isinstance(answer, tuple) else answer).numpy()


def _one_array(observations: Shown) -> Array:
    if isinstance(observations, dict | tuple):
        raise UsageError("a policy in a file sees one array: this environment shows several")
    return np.asarray(observations)
