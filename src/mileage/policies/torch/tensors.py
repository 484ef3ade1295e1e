"""Where tensors meet NumPy: arrays with a twin on the device, tensors seen as live arrays, the number of threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mileage._errors import UsageError


def resolve_device(name: str) -> torch.device:
    """The device called `name`; "auto" is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device {name!r} cannot be used here: use 'auto' or 'cpu'") from error
    return device


@contextlib.contextmanager
def torch_threads(n: int) -> Iterator[None]:
    """Let torch use `n` threads; restores the setting."""
    before = torch.get_num_threads()
    if before == n:
        yield
        return
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# Below this many operations per call, waking a second thread costs more than it brings.
_OPERATIONS_PER_THREAD = 20_000_000


def useful_threads(operations: float, limit: int) -> int:
    """How many threads to use, at most `limit`, for calls of about this many floating-point operations."""
    return int(max(1, min(limit, operations // _OPERATIONS_PER_THREAD)))


class Twin:
    """An array on the host, `host`, and a tensor of the same content on the device, `tensor`.

    On the CPU both are the same memory and nothing is ever copied. Elsewhere the host's part is pinned, so that copies
    to the device need not be waited for.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, device: torch.device, *, separate: bool | None = None
    ) -> None:
        """Allocate zeros; `separate` asks for memory of its own on the device (default: unless that is the CPU)."""
        self.separate = device.type != "cpu" if separate is None else separate
        kind = torch.from_numpy(np.zeros(0, dtype)).dtype
        self._host = torch.zeros(shape, dtype=kind, pin_memory=device.type == "cuda")
        self.host: NDArray[Any] = self._host.numpy()
        self.tensor = torch.zeros(shape, dtype=kind, device=device) if self.separate else self._host

    def push(self, rows: slice = slice(None)) -> None:
        """Send rows to the device."""
        if self.separate:
            self.tensor[rows].copy_(self._host[rows], non_blocking=True)

    def pull(self, rows: slice = slice(None)) -> None:
        """Fetch rows from the device, and wait for them."""
        if self.separate:
            self._host[rows].copy_(self.tensor[rows])


class Inbox:
    """Arrays that are filled on the host again and again, and the tensors that the device gets of them."""

    def __init__(
        self, arrays: Mapping[str, NDArray[Any]], device: torch.device, *, separate: bool | None = None
    ) -> None:
        self._arrays = dict(arrays)
        self.separate = device.type != "cpu" if separate is None else separate
        self._twins: dict[str, Twin] = {}
        if self.separate:
            self._twins = {name: Twin(each.shape, each.dtype, device, separate=True) for name, each in arrays.items()}
            self.tensors = {name: twin.tensor for name, twin in self._twins.items()}
        else:
            self.tensors = {name: torch.from_numpy(each) for name, each in arrays.items()}

    def send(self) -> None:
        """Send what the arrays hold now; nothing to do where the tensors are the arrays' own memory."""
        for name, twin in self._twins.items():
            np.copyto(twin.host, self._arrays[name])
            twin.push()


class LiveTensors:
    """Tensors by name as arrays for checkpoints: their own memory on the CPU, copies to and from it elsewhere."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)
        self._copies: dict[str, NDArray[Any]] = {}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The tensors as they are now; write to these, then `load`."""
        for name, tensor in self._tensors.items():
            array = tensor.detach().cpu().numpy()
            # Strided memory, such as that of channels-last weights, is written contiguously and read back.
            if name in self._copies:
                self._copies[name][...] = array
            elif tensor.device.type != "cpu" or not array.flags.c_contiguous:
                self._copies[name] = np.ascontiguousarray(array).copy()
        return {name: self._copies.get(name, tensor.detach().cpu().numpy()) for name, tensor in self._tensors.items()}

    def load(self) -> None:
        """Take over what was written to the arrays."""
        with torch.no_grad():
            for name, array in self._copies.items():
                self._tensors[name].copy_(torch.from_numpy(array))


def map_state(function: Callable[..., Tensor], *states: Any) -> Any:
    """Apply `function` to the tensors at the same place of each state: a tensor, or tuples, lists and dicts of states."""
    first = states[0]
    if isinstance(first, dict):
        return {key: map_state(function, *(state[key] for state in states)) for key in first}
    if isinstance(first, tuple | list):
        return tuple(map_state(function, *parts) for parts in zip(*states, strict=True))
    return function(*states)


def state_tensors(state: Any, prefix: str = "memory") -> dict[str, Tensor]:
    """The tensors of a state by name."""
    if isinstance(state, dict):
        parts = state.items()
    elif isinstance(state, tuple | list):
        parts = enumerate(state)  # type: ignore[assignment]
    else:
        return {prefix: state}
    return {name: tensor for key, part in parts for name, tensor in state_tensors(part, f"{prefix}.{key}").items()}
