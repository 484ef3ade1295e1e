"""Where tensors meet NumPy: arrays with a twin on the device, live views, threads; and Adam with a state to save."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mileage.errors import UsageError
from mileage.system import ThreadPool
from mileage.types import Array


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


# OpenMP's threads do not survive a fork, and torch would wait for them.
_HOME = os.getpid()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=functools.partial(torch.set_num_threads, 1))


@contextlib.contextmanager
def torch_threads(n: int) -> Iterator[None]:
    """Let torch use `n` threads, or one in a forked child; restores the setting."""
    n = n if os.getpid() == _HOME else 1
    before = torch.get_num_threads()
    if before == n:
        yield
        return
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# From <malloc.h>: how much free memory is kept, and from which size on a block gets pages of its own.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 1 << 28


@functools.cache
def keep_freed_memory() -> bool:
    """Have the C library keep what large tensors leave behind; False where it cannot be asked to.

    By default glibc hands pages back when a large tensor is freed and fetches them, zeroed, for the next one: the
    gradient of a convolutional network spends an eighth of its time on that.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)) and bool(mallopt(_MMAP_THRESHOLD, _KEPT_BYTES))


# torch's threads meet after every operation of a network, which costs more than it brings below this many operations
# per call; on a busy machine it costs far more.
_OPERATIONS_PER_THREAD = 200_000_000
# Samples are split over threads of our own, which meet once per gradient, from this much work per piece on. Fewer rows
# than these are a loss: each piece arranges the weights anew.
_OPERATIONS_PER_PIECE = 100_000_000
_ROWS_PER_PIECE = 128
_MOST_PIECES = 8


def useful_threads(operations: float, limit: int) -> int:
    """How many threads to use, at most `limit`, for calls of about this many floating-point operations."""
    return int(max(1, min(limit, operations // _OPERATIONS_PER_THREAD)))


def n_pieces(rows: int, operations: float) -> int:
    """Pieces to cut a minibatch into, whatever the number of threads, so that results do not depend on it."""
    return int(max(1, min(_MOST_PIECES, rows // _ROWS_PER_PIECE, rows * operations // _OPERATIONS_PER_PIECE)))


class SampleThreads:
    """Computes pieces of a batch, each on one thread, and returns their results in order."""

    def __init__(self, n: int) -> None:
        """Use `n` threads, the caller's among them."""
        self._pool = ThreadPool(n - 1, functools.partial(torch.set_num_threads, 1)) if n > 1 else None
        self._n = n

    def run(self, function: Callable[[Tensor], Any], pieces: Sequence[Tensor]) -> list[Any]:
        """`function` of every piece, in order; call it with torch set to one thread."""
        if self._pool is None:
            return [function(piece) for piece in pieces]
        # The caller takes pieces from the front while the pool takes them from the back.
        others = [self._pool.submit(function, piece) for piece in reversed(pieces[1:])]
        results = [function(pieces[0])]
        for piece, other in zip(pieces[1:], reversed(others), strict=True):
            results.append(function(piece) if other.cancel() else other.result())
        return results


class HostDevice:
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
        self.host: Array = self._host.numpy()
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

    def __init__(self, arrays: Mapping[str, Array], device: torch.device, *, separate: bool | None = None) -> None:
        self._arrays = dict(arrays)
        self.separate = device.type != "cpu" if separate is None else separate
        self._twins: dict[str, HostDevice] = {}
        if self.separate:
            self._twins = {
                name: HostDevice(each.shape, each.dtype, device, separate=True) for name, each in arrays.items()
            }
            self.tensors = {name: twin.tensor for name, twin in self._twins.items()}
        else:
            self.tensors = {name: torch.from_numpy(each) for name, each in arrays.items()}

    def send(self) -> None:
        """Send what the arrays hold now; nothing to do where the tensors are the arrays' own memory."""
        for name, twin in self._twins.items():
            np.copyto(twin.host, self._arrays[name])
            twin.push()

    def put(self, name: str, values: Array) -> Tensor:
        """Fill one array, send it, and return its tensor."""
        np.copyto(self._arrays[name], values)
        self.send()
        return self.tensors[name]


class LiveTensors:
    """Tensors by name as arrays for checkpoints: their own memory on the CPU, copies to and from it elsewhere."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)
        self._copies: dict[str, Array] = {}

    def arrays(self) -> dict[str, Array]:
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
    """Apply `function` to the tensors at the same place of each state: a tensor, or a tuple, list or dict of states."""
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


# --- Adam with gradient clipping, whose state can be put into a checkpoint ---
_BETA1, _BETA2 = 0.9, 0.999


class Adam:
    """Clips gradients to a global norm and takes Adam steps, all parameters in one fused call.

    This is the call that `torch.optim.Adam(fused=True)` makes, without importing torch's compiler on the way, which
    takes longer than learning a small task.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], *, eps: float, name: str = "adam") -> None:
        self._names, self._parameters = list(parameters), list(parameters.values())
        self._eps, self._name = eps, name
        self.steps = 0
        self._means = [torch.zeros_like(each, memory_format=torch.preserve_format) for each in self._parameters]
        self._squares = [torch.zeros_like(each, memory_format=torch.preserve_format) for each in self._parameters]
        self._counts = [torch.zeros((), device=each.device) for each in self._parameters]

    def step(self, loss: Tensor, rate: float, max_norm: float, *, measured: bool = False) -> Tensor:
        """One step of length `rate` down the gradient of `loss`.

        Returns the gradient's norm before clipping; 0 if there is no limit and it is not to be `measured`.
        """
        return self.descend(self.gradients(loss), rate, max_norm, measured=measured)

    def gradients(self, loss: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of `loss` by the parameters; None where it does not depend on one."""
        return torch.autograd.grad(loss, self._parameters, allow_unused=True)

    @torch.no_grad()
    def descend(
        self, gradients: Sequence[Tensor | None], rate: float, max_norm: float, *, measured: bool = False
    ) -> Tensor:
        """As `step`, with gradients that are known already; they are overwritten."""
        used = [index for index, each in enumerate(gradients) if each is not None]
        slopes = [each for each in gradients if each is not None]
        norm = torch.zeros(())
        if max_norm > 0.0 or measured:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(slopes)))
        if max_norm > 0.0:
            torch._foreach_mul_(slopes, (max_norm / (norm + 1e-6)).clamp(max=1.0))
        counts = [self._counts[index] for index in used]
        torch._foreach_add_(counts, 1.0)
        torch._fused_adam_(
            [self._parameters[index] for index in used], slopes, [self._means[index] for index in used],
            [self._squares[index] for index in used], [], counts, lr=rate, beta1=_BETA1, beta2=_BETA2, weight_decay=0.0,
            eps=self._eps, amsgrad=False, maximize=False,
        )  # fmt: skip
        self.steps += 1
        return norm

    def tensors(self) -> dict[str, Tensor]:
        """The moments by name."""
        means = {f"{self._name}_mean.{name}": each for name, each in zip(self._names, self._means, strict=True)}
        squares = {f"{self._name}_square.{name}": each for name, each in zip(self._names, self._squares, strict=True)}
        return means | squares

    def set_steps(self, steps: int) -> None:
        """Go on after `steps` steps."""
        self.steps = steps
        for each in self._counts:
            each.fill_(steps)


def added(gradients: Sequence[tuple[Tensor | None, ...]]) -> tuple[Tensor | None, ...]:
    """The sum of the gradients of several pieces, in their order; the first ones are overwritten."""
    # A parameter is either part of every piece or of none.
    sums = [each for each in gradients[0] if each is not None]
    for other in gradients[1:]:
        torch._foreach_add_(sums, [each for each in other if each is not None])
    return gradients[0]
