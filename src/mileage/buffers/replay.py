"""Uniform replay: a ring of transitions, pushed with one copy and sampled into reused memory."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any, SupportsIndex, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mileage.buffers import layout as files
from mileage.buffers.layout import HeapStorage, Layout, LayoutOptions, Shape, Storage
from mileage.errors import CheckpointError, UsageError, require
from mileage.kernels import ring
from mileage.kernels.machine.checks import check_field
from mileage.kernels.machine.frames import Frame
from mileage.kernels.machine.team import run_shards
from mileage.kernels.random import streams
from mileage.kernels.ring import BATCH, bind
from mileage.types import F32, I64, U64, Array, Bool


# --- A batch of sampled transitions in memory that is allocated once and filled again and again ---
class Batch:
    """`size` transitions; pass it to `sample(..., out=batch)` to have it filled.

    Attributes:
        obs, next_obs: (size, *obs_shape) in the buffer's dtype; `next_obs` is n steps later or where the episode ended.
        actions: (size, *action_shape) in the buffer's dtype.
        rewards: (size,) float32, the discounted sum over up to n steps.
        discounts: (size,) float32, what the value of `next_obs` is worth: gamma ** steps, 0 after a terminated one.
        terminated, truncated: (size,) bool, of the last of those steps.
        indices: (size,) int64, where in the ring; for `update_priorities`.
        weights: (size,) float32, importance weights; all 1 unless sampling is prioritized.
    """

    __slots__ = (
        "_record", "actions", "discounts", "indices", "layout", "next_obs", "obs", "rewards", "size", "terminated",
        "truncated", "weights",
    )  # fmt: skip

    def __init__(self, layout: Layout, size: int) -> None:
        self.layout, self.size = layout, size
        self.obs: Array = np.empty((size, *layout.obs_shape), layout.obs_dtype)
        self.next_obs: Array = np.empty((size, *layout.obs_shape), layout.obs_dtype)
        self.actions: Array = np.empty((size, *layout.action_shape), layout.action_dtype)
        self.rewards: F32 = np.empty(size, np.float32)
        self.discounts: F32 = np.empty(size, np.float32)
        self.terminated: Bool = np.empty(size, np.bool_)
        self.truncated: Bool = np.empty(size, np.bool_)
        self.indices: I64 = np.empty(size, np.int64)
        self.weights: F32 = np.ones(size, np.float32)
        self._record = np.empty(1, BATCH)
        bind(
            self._record, self.obs.reshape(-1), self.next_obs.reshape(-1), self.actions.reshape(-1), self.rewards,
            self.discounts, self.terminated, self.truncated, self.indices, self.weights,
        )  # fmt: skip

    def __len__(self) -> int:
        return self.size


_FEWEST_FINALS = 64
_GROWTH = 2
# Bytes a thread copies in about the time of two elementary steps of `run_shards`.
_BYTES_PER_STEP = 8
# Bytes of observations from which on gathering may be worth a second thread.
LARGE = 1 << 20
_REWARD_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
_FIELDS = ("obs", "actions", "rewards", "terminated", "truncated", "next_obs")
# Arrays that nobody else has.
_NOTHING = tuple(np.empty(0) for _ in _FIELDS)
_FLAG_DTYPES = (np.dtype(np.bool_), np.dtype(np.uint8))


class ReplayBuffer:
    """Holds the last `capacity` transitions and samples them uniformly, with replacement.

    `terminated` and `truncated` are kept apart; `n_step` returns stop at the end of an episode and at the newest
    transition. Sampling is reproducible from `seed`. Where there is much to copy, pushing and
    sampling release the GIL; they must not run at the same time in two threads.

    >>> buffer = ReplayBuffer(1000, obs_shape=3, action_shape=1, seed=0)
    >>> obs = np.ones(3, np.float32)
    >>> buffer.push(obs, np.zeros(1, np.float32), 1.0, False, False, obs)
    >>> buffer.sample(1).rewards
    array([1.], dtype=float32)
    """

    kind = "replay"

    def __init__(
        self, capacity: int, obs_shape: Shape, action_shape: Shape = (), *, seed: int = 0,
        **options: Unpack[LayoutOptions],
    ) -> None:  # fmt: skip
        """Allocate.

        Args:
            capacity: most transitions to hold; rounded down to a multiple of `n_envs`.
            obs_shape: shape of one observation; an integer is a vector.
            action_shape: shape of one action, () for a single number.
            seed: of the sampling.
            options: dtypes, `n_envs`, `next_obs`, `n_step` and `gamma`, see `mileage.buffers.layout.LayoutOptions`.
        """
        self._build(Layout.of(capacity, obs_shape, action_shape, **options), HeapStorage(), seed)

    def _build(self, layout: Layout, storage: Storage, seed: int) -> None:
        self.layout, self._storage, self._derived = layout, storage, not layout.stored
        self._rows, self._n_envs, self._obs_bytes = layout.rows, layout.n_envs, layout.obs_bytes
        self._records = storage.allocate("records", layout.rows * layout.n_envs * layout.record, np.uint8)
        self._counters: I64 = storage.allocate("counters", 8, np.int64)
        self._rng: U64 = storage.allocate("rng", 2, np.uint64)
        if not self._rng.any():
            self._rng[:] = streams(seed, 1, "replay")[0]
        finals = 0 if layout.stored else self._first_finals()
        self._finals = storage.allocate("finals", finals * layout.obs_bytes, np.uint8)
        self._free: I64 = np.empty(0, np.int64)
        nowhere = dict.fromkeys(f"{ring.SOURCE} {ring.SOURCE_INTEGERS}".split(), 0)
        self._frame = Frame(ring.RING, **layout.frame_fields(), **nowhere)
        self._count = memoryview(self._counters)  # type: ignore[arg-type]
        obs, action = (np.dtype(layout.obs_dtype),), (np.dtype(layout.action_dtype),)
        self._shapes = (layout.obs_shape, layout.action_shape, (), (), (), layout.obs_shape)
        self._dtypes = (obs, action, _REWARD_DTYPES, _FLAG_DTYPES, _FLAG_DTYPES, obs)
        self._rebuild_free_rows()
        # Fields of the frame as (1,) arrays, and what they point to now.
        self._sources = tuple(self._record[name] for name in ring.SOURCE.split())
        self._source_n, self._source_wide = (self._record[name] for name in ring.SOURCE_INTEGERS.split())
        self._bound: tuple[Array, ...] = _NOTHING
        # A single transition as a batch of one.
        kinds = (dtypes[0] for dtypes in self._dtypes)
        self._one = tuple(np.zeros((1, *shape), dtype) for shape, dtype in zip(self._shapes, kinds, strict=True))

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        written = self._count[0]
        newest = written - 1 if self._derived else written
        return max(0, newest - self._oldest()) * self._n_envs

    @property
    def capacity(self) -> int:
        """Most transitions that can be held."""
        return self.layout.capacity

    @property
    def nbytes(self) -> int:
        """Bytes that hold transitions."""
        return int(self._records.nbytes)

    @property
    def frame(self) -> NDArray[np.void]:
        """The ring as a record for kernels that store transitions themselves (`mileage.kernels.ring.store`)."""
        return self._record

    def push(
        self, obs: Array, action: ArrayLike, reward: float, terminated: bool, truncated: bool, next_obs: Array
    ) -> None:
        """Store one transition of a single environment.

        Args:
            obs, next_obs: (*obs_shape,) in the buffer's dtype. With derived next observations, `next_obs` is kept only
                where the episode ends.
            action: (*action_shape,) in the buffer's dtype, or a number if the shape is ().
            reward: what the step returned.
            terminated: whether the episode came to its own end.
            truncated: whether it was cut off.
        """
        layout, (obs_dtypes, action_dtypes, *_) = self.layout, self._dtypes
        if layout.n_envs != 1:
            raise UsageError(f"push takes one environment and this buffer has {layout.n_envs}: use push_batch")
        taken = self._number(action) if layout.action_shape == () else action
        check_field("obs", obs, layout.obs_shape, obs_dtypes)
        check_field("next_obs", next_obs, layout.obs_shape, obs_dtypes)
        check_field("action", taken, layout.action_shape, action_dtypes)
        one = self._one
        one[0][0], one[1][0], one[5][0] = obs, taken, next_obs
        try:
            one[2][...], one[3][...], one[4][...] = reward, terminated, truncated
        except (TypeError, ValueError) as error:
            raise UsageError("reward must be a number, terminated and truncated must be true or false") from error
        self.push_batch(*one)

    def push_batch(
        self, obs: Array, actions: Array, rewards: Array, terminated: Array, truncated: Array, next_obs: Array
    ) -> None:
        """Store n transitions, n a multiple of `n_envs`: for each step, one per environment.

        Arrays that are the same as at the last call are not looked at again, which makes a loop that writes to its
        arrays instead of making new ones several times faster. The last ones are kept alive.

        Args:
            obs, next_obs: (n, *obs_shape) in the buffer's dtype, C-contiguous. With derived next observations,
                rows of `next_obs` count only where an episode ends; they hold its final observation.
            actions: (n, *action_shape) in the buffer's dtype, C-contiguous.
            rewards: (n,) float32 or float64.
            terminated, truncated: (n,) bool or uint8.
        """
        last = self._bound
        same = obs is last[0] and actions is last[1] and rewards is last[2] and next_obs is last[5]
        if not (same and terminated is last[3] and truncated is last[4]):
            self._bind((obs, actions, rewards, terminated, truncated, next_obs))
        if self._derived and self._count[ring.FREE] < len(obs):
            self._make_room(len(obs))
        ring.push(self._record)

    def update_priorities(self, indices: I64, priorities: Array) -> None:
        """Set new priorities of sampled transitions: where sampling is uniform there are none."""

    def batch(self, size: int) -> Batch:
        """Memory for `size` transitions, to be passed to `sample` again and again."""
        return Batch(self.layout, _positive("batch size", size))

    def sample(self, batch_size: int, out: Batch | None = None, *, batches: int = 1) -> Batch:
        """Sample `batch_size` transitions into `out` (from `batch`), or into new memory.

        `batches` of them come one after the other, each drawn from all that is held.
        """
        out = self._memory_for(batch_size, out, batches)
        if out.size * self._obs_bytes < LARGE:
            ring.sample(self._record, out._record)
        else:
            ring.draw_only(self._record, out._record)
            self._gather(out)
        return out

    def at(self, indices: ArrayLike) -> Batch:
        """The transitions at `indices`, (n,) int64 as `Batch.indices` gives them."""
        chosen = self._checked_indices(np.asarray(indices))
        out = self.batch(len(chosen))
        out.indices[:] = chosen
        self._gather(out)
        return out

    def clear(self) -> None:
        """Forget all transitions; memory stays allocated."""
        self._records.view(np.int64)[self.layout.state_at // 8 :: self.layout.record // 8] = 0
        self._counters[:] = 0
        self._rebuild_free_rows()

    def save(self, path: str | Path) -> None:
        """Write the transitions and the sampling state to a safetensors file."""
        files.save(Path(path), self.kind, self.layout, self.saved_arrays())

    @classmethod
    def load(cls, path: str | Path) -> ReplayBuffer:
        """Read what `save` wrote; sampling goes on where it was."""
        layout, arrays = files.load(Path(path), cls.kind)
        try:
            return _restored(cls, layout, arrays)
        except (KeyError, ValueError, IndexError, CheckpointError) as error:
            raise files.damaged(Path(path)) from error

    def __reduce__(self) -> tuple[Any, ...]:
        # Kernels have addresses of its memory: a copy is a buffer of its own with the same content.
        arrays = {name: np.array(array) for name, array in self.saved_arrays().items()}
        return _restored, (type(self), self.layout, arrays)

    def saved_arrays(self) -> dict[str, Array]:
        """Everything that is held, by name; only the part of the ring that is in use."""
        return {"records": self._held_records(), "finals": self._finals, "counters": self._counters, "rng": self._rng}

    def _held_records(self) -> Array:
        """The part of the memory that has been written to, uint8."""
        layout = self.layout
        rows = min(layout.rows, max(self._count[ring.BEGUN], self._count[ring.WRITTEN]))
        return self._records[: rows * layout.n_envs * layout.record]

    def restore(self, arrays: dict[str, Array]) -> None:
        """Put back what `saved_arrays` of a buffer of the same make returned."""
        records, counters = arrays["records"], arrays["counters"]
        if not 0 <= counters[ring.WRITTEN] <= counters[ring.BEGUN] <= counters[ring.WRITTEN] + 1:
            raise files.damaged()
        self._counters[:] = counters
        self._rng[:] = arrays["rng"]
        self._held_records()[:] = records
        self._finals = self._storage.grow("finals", arrays["finals"], len(arrays["finals"]))
        self._rebuild_free_rows()

    def _gather(self, out: Batch) -> None:
        work = max(1, 2 * self.layout.obs_bytes // _BYTES_PER_STEP)
        run_shards(ring.gather_rows, out.size, work, self._record, out._record)

    def _number(self, action: object) -> Array:
        """An action that is a single number as an array, in the buffer's dtype if nothing is lost by that."""
        dtype = self.layout.action_dtype
        if isinstance(action, int):
            try:
                return np.array(action, dtype)
            except OverflowError as error:
                raise UsageError(f"action {action} does not fit the buffer's action dtype {dtype}") from error
        array = np.array(action)
        return array.astype(dtype) if np.can_cast(array.dtype, dtype, "same_kind") else array

    def _bind(self, arrays: tuple[Array, ...]) -> None:
        """Enter where the transitions to be pushed are, if they fit; those that are there already need no look."""
        last, self._bound = self._bound, _NOTHING
        n = self._checked_length(arrays[0])
        if n != self._source_n[0]:
            last = _NOTHING
        fields = zip(_FIELDS, arrays, last, self._shapes, self._dtypes, self._sources, strict=True)
        for name, array, known, shape, dtypes, source in fields:
            if array is not known:
                check_field(name, array, (n, *shape), dtypes)
                source[0] = array.ctypes.data
        self._source_n[0], self._source_wide[0] = n, arrays[2].dtype == np.float64
        self._bound = arrays

    def _first_finals(self) -> int:
        return max(_FEWEST_FINALS, self.layout.n_envs, self.layout.capacity // 64)

    def _make_room(self, needed: int) -> None:
        """Room for as many final observations as transitions are pushed: episodes may be shorter than thought."""
        rows = len(self._finals) // self.layout.obs_bytes * _GROWTH + needed
        self._finals = self._storage.grow("finals", self._finals, rows * self.layout.obs_bytes)
        self._rebuild_free_rows()

    def _rebuild_free_rows(self) -> None:
        """Find the final rows that no transition refers to, from the records themselves."""
        layout = self.layout
        rows = len(self._finals) // layout.obs_bytes if not layout.stored else 0
        self._free = np.zeros(max(rows, 1), np.int64)
        used = np.zeros(rows + 1, np.bool_)
        if self._derived:
            kept = self._records.view(np.int64)[layout.state_at // 8 :: layout.record // 8] >> 2
            if kept.max() > rows or kept.min() < 0:
                raise files.damaged()
            used[kept] = True
            # A row that two transitions claimed would be given back twice.
            if used[1:].sum() != np.count_nonzero(kept):
                raise files.damaged()
        free = np.flatnonzero(~used[1:])[::-1]
        self._free[: len(free)] = free
        self._counters[ring.FREE] = len(free)
        self._frame.set(
            records=self._records, finals=self._finals, free=self._free, counters=self._counters, rng=self._rng
        )
        self._record = self._frame.record

    def _checked_indices(self, indices: Array) -> Array:
        """Raise unless every index is one that can be sampled now."""
        layout = self.layout
        first = self._oldest()
        rows = len(self) // layout.n_envs
        fits = indices.ndim == 1 and indices.dtype.kind in "iu"
        if fits:
            age = (indices // layout.n_envs - first) % layout.rows
            inside = (indices >= 0) & (indices < layout.rows * layout.n_envs)
            fits = bool((inside & (age < rows)).all())
        if not fits:
            raise UsageError(
                "indices must be a vector of positions that the buffer holds: take them from Batch.indices"
            )
        return indices

    def _oldest(self) -> int:
        """Number of the oldest row that is still whole."""
        written, begun = self._count[0], self._count[1]
        first: int = (begun if begun > written else written) - self._rows
        return first if first > 0 else 0

    def _memory_for(self, batch_size: int, out: Batch | None, batches: int) -> Batch:
        """`out`, or new memory, for `batches` times `batch_size` transitions; raises unless they can be sampled."""
        size, held = _positive("batch size", batch_size), len(self)
        if held == 0:
            raise UsageError("the buffer is empty: push transitions before sampling")
        if size > held:
            raise UsageError(f"batch size {size} is larger than the {held} transitions held: push more or sample fewer")
        if batches != 1:
            size *= _positive("batches", batches)
        if out is None:
            return Batch(self.layout, size)
        if not isinstance(out, Batch):
            raise UsageError(f"out must be a batch, not {type(out).__name__}: make it with buffer.batch({size})")
        if out.size != size or (out.layout is not self.layout and out.layout != self.layout):
            raise UsageError(f"out holds {out.size} transitions of another batch: make it with buffer.batch({size})")
        return out

    def _checked_length(self, obs: Array) -> int:
        """How many transitions a batch has, if they can be pushed together."""
        layout = self.layout
        n = len(obs) if isinstance(obs, np.ndarray) and obs.ndim == len(layout.obs_shape) + 1 else layout.n_envs
        if n == 0 or n % layout.n_envs or n > layout.rows * layout.n_envs:
            raise UsageError(
                f"obs holds {n} transitions: push a multiple of n_envs ({layout.n_envs}), at most the capacity"
            )
        return n


def _positive(name: str, number: SupportsIndex) -> int:
    """Raise unless `number` is a whole number from 1 on."""
    try:
        whole = operator.index(number)
    except TypeError as error:
        raise UsageError(f"{name} must be a whole number of at least 1, not {number!r}") from error
    require(whole >= 1, name, whole, "a whole number of at least 1")
    return whole


def _restored(kind: type[ReplayBuffer], layout: Layout, arrays: dict[str, Array]) -> ReplayBuffer:
    """A buffer with what `saved_arrays` of another returned."""
    buffer = kind.__new__(kind)
    buffer._build(layout, HeapStorage(), seed=0)
    buffer.restore(arrays)
    return buffer
