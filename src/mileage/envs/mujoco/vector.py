"""Gymnasium's MuJoCo environments in native threads: models, batches of simulations, random generators.

MuJoCo's `mujoco.rollout` hands back states and sensors only: not the solver's warm start, without which a simulation
drifts from one that was never interrupted, nor the quantities of the last Runge-Kutta stage that Gymnasium's
environments observe. A batch keeps whole states and copies any field out. Its Python class lacks one thing that is
needed here, to run a function on every simulation (`mjb_apply`), hence the C interface.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import dataclasses
import functools
import hashlib
import importlib.util
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import mujoco
import numpy as np
from numpy.typing import ArrayLike

from mileage.contracts import Step
from mileage.envs.mujoco.tasks import TASKS, Task, task_class
from mileage.envs.vector import Seed, SpacedSpec, VectorBase, most_threads
from mileage.errors import MileageError, UnknownNameError, UsageError, require
from mileage.types import F64, I64, U64, Array, Bool


# --- Models of MuJoCo: found by name, compiled once ---
def find(name: str) -> Path:
    """The model file `name`; one without a folder is Gymnasium's, as in its constructors."""
    path = Path(name).expanduser() if name.startswith((".", "/", "~")) else _assets() / name
    if not path.is_file():
        raise UsageError(f"xml_file {name!r} does not exist: give the path of a MuJoCo model")
    return path


def compiled_model(path: Path) -> mujoco.MjModel:
    """The model in a file."""
    try:
        return _compile(str(path))
    except ValueError as error:
        raise UsageError(f"xml_file {str(path)!r} cannot be loaded: {str(error).splitlines()[0]}") from error


def _assets() -> Path:
    """Where Gymnasium keeps its models, found without importing its environments."""
    found = importlib.util.find_spec("gymnasium")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "envs" / "mujoco" / "assets"


@functools.cache
def _compile(path: str) -> mujoco.MjModel:
    """Compile a model; what MuJoCo has to say about it comes as Python warnings, not in a file of its own."""
    messages: list[str] = []
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(messages.append)
    try:
        model = mujoco.MjModel.from_xml_path(path)
    finally:
        mujoco.set_mju_user_warning(before)
    for message in messages:
        # About the form of Gymnasium's own files, which users can do nothing about.
        if "deprecated" not in message:
            warnings.warn(f"{path}: {message}", stacklevel=2)
    return model


# --- Many simulations of one MuJoCo model in native threads: the batch interface of its C library (4.0 on) ---
_STAGE_NONE, _STAGE_ACCELERATION = 0, 3
_STATE = {
    "qpos": mujoco.mjtState.mjSTATE_QPOS,
    "qvel": mujoco.mjtState.mjSTATE_QVEL,
    "ctrl": mujoco.mjtState.mjSTATE_CTRL,
}
_pointer, _int = ctypes.c_void_p, ctypes.c_int
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "mjb_makeBatch": (_pointer, [_pointer, _int, _pointer, ctypes.c_char_p, _int]),
    "mjb_deleteBatch": (None, [_pointer]),
    "mjb_nstate": (_int, [_pointer]),
    "mjb_state": (_pointer, [_pointer]),
    "mjb_stateComponent": (_pointer, [_pointer, _int, _pointer]),
    "mjb_output": (_pointer, [_pointer, ctypes.c_char_p, _pointer, _pointer]),
    "mjb_reset": (_int, [_pointer, _pointer, _int, _pointer, _int]),
    "mjb_forward": (_int, [_pointer, _pointer, _int, _int]),
    "mjb_step": (_int, [_pointer, _pointer, _int, _int, _int]),
    "mjb_apply": (_int, [_pointer, _pointer, _int, _pointer, _pointer, _int]),
    "mjb_status": (_pointer, [_pointer]),
    "mjb_error": (ctypes.c_char_p, [_pointer, _int]),
}


class _Config(ctypes.Structure):
    _fields_ = (("nthread", _int), ("persistent", ctypes.c_bool))


@functools.cache
def library() -> ctypes.CDLL | None:
    """MuJoCo's C library with the functions of a batch declared, or None if it has none."""
    folder = Path(mujoco.__file__).parent
    found = [*folder.glob("libmujoco.so*"), *folder.glob("libmujoco*.dylib"), *folder.glob("mujoco.dll")]
    name = str(found[0]) if found else ctypes.util.find_library("mujoco")
    try:
        handle = ctypes.CDLL(name) if name else None
        if handle is not None:
            for function, (result, arguments) in _SIGNATURES.items():
                getattr(handle, function).restype = result
                getattr(handle, function).argtypes = arguments
    except (OSError, AttributeError):
        return None
    return handle


class _Handle:
    """A batch of the C library; freed with the last array that looks into its memory."""

    def __init__(self, loaded: ctypes.CDLL, address: int) -> None:
        self._library, self.address = loaded, address

    def __del__(self) -> None:
        self._library.mjb_deleteBatch(self.address)


class ModelBatch:
    """`n` simulations of `model` on `threads` threads, the caller's included.

    `state` (N, S) float64 is all that the simulations remember from one call to the next; `qpos` (N, nq), `qvel`
    (N, nv) and `ctrl` (N, nu) are parts of it: what is written there is the state at the next call. Every name in
    `outputs` is an (N, ...) float64 attribute with that field of MjData as it was after the last call; as after
    `mj_step`, it belongs to the last stage that the integrator took.
    """

    state: F64

    qpos: F64
    qvel: F64
    ctrl: F64
    xpos: F64
    """From here on only if asked for."""
    xipos: F64
    site_xpos: F64
    cinert: F64
    cvel: F64
    cfrc_ext: F64
    qfrc_actuator: F64
    qfrc_constraint: F64

    def __init__(
        self, model: mujoco.MjModel, n: int, threads: int, outputs: tuple[str, ...], *, contact_forces: bool
    ) -> None:
        """`contact_forces` computes `cfrc_ext` after every step, which costs a pass of its own."""
        loaded = library()
        assert loaded is not None
        self._library, self._n, self._contact_forces = loaded, n, contact_forces
        # The pass over contacts goes on from the last step's data, so that every simulation needs its own.
        config = _Config(threads, contact_forces)
        message = ctypes.create_string_buffer(1000)
        address = loaded.mjb_makeBatch(model._address, n, ctypes.byref(config), message, len(message))
        if not address:
            raise MileageError(f"MuJoCo cannot simulate {n} copies of this model: {message.value.decode()}")
        self._handle, self._batch = _Handle(loaded, address), address
        row = loaded.mjb_nstate(address)
        self.state = self._rows(loaded.mjb_state(address), row, row)
        for name, component in _STATE.items():
            size = _int()
            found = loaded.mjb_stateComponent(address, int(component.value), ctypes.byref(size))
            setattr(self, name, self._rows(found, size.value, row))
        template = mujoco.MjData(model)
        self.outputs: dict[str, F64] = {}
        for name in outputs:
            shape = getattr(template, name).shape
            width = int(np.prod(shape))
            found = loaded.mjb_output(address, name.encode(), None, None)
            self.outputs[name] = self._rows(found, width, width).reshape(n, *shape)
        vars(self).update(self.outputs)
        self._contact_pass = ctypes.cast(loaded.mj_rnePostConstraint, _pointer)

    def start(self, rows: I64, qpos: F64, qvel: F64) -> None:
        """Put the simulations `rows` (R,) at rest with nothing remembered, then at `qpos` (R, nq), `qvel` (R, nv)."""
        ids = rows.astype(np.int32)
        handle, count = ids.ctypes.data, len(ids)
        self._check(self._library.mjb_reset(self._batch, handle, count, None, _STAGE_NONE))
        self.qpos[rows] = qpos
        self.qvel[rows] = qvel
        self._check(self._library.mjb_forward(self._batch, handle, count, _STAGE_ACCELERATION))

    def step(self, substeps: int, rows: I64 | None = None) -> None:
        """Advance all simulations, or those of `rows` (R,), with the controls in `ctrl`."""
        ids = None if rows is None else rows.astype(np.int32)
        which = (None, 0) if ids is None else (ids.ctypes.data, len(ids))
        failed = self._library.mjb_step(self._batch, *which, substeps, _STAGE_NONE)
        if self._contact_forces and not failed:
            # A batch calls f(model, data, index, argument); the last two go in registers that this function ignores.
            failed = self._library.mjb_apply(self._batch, *which, self._contact_pass, None, 0)
            # Which copies nothing out, as other calls do, even one that computes nothing.
            failed = failed or self._library.mjb_forward(self._batch, *which, _STAGE_NONE)
        if failed:
            self._check(failed)

    def close(self) -> None:
        """Let go of simulations and threads, which end with the last array that somebody else still has of them."""
        vars(self).clear()

    def _rows(self, address: int, size: int, stride: int) -> F64:
        """View `size` of every `stride` doubles."""
        if size == 0:
            return np.zeros((self._n, 0))
        memory = (ctypes.c_double * ((self._n - 1) * stride + size)).from_address(address)
        vars(memory)["owner"] = self._handle
        flat: F64 = np.ctypeslib.as_array(memory)
        return np.lib.stride_tricks.as_strided(flat, (self._n, size), (8 * stride, 8))

    def _check(self, failed: int) -> None:
        if failed:
            status = (_int * self._n).from_address(self._library.mjb_status(self._batch))
            first = next(i for i, value in enumerate(status) if value)
            text = " ".join(self._library.mjb_error(self._batch, first).decode().split())
            raise MileageError(f"MuJoCo failed in {failed} of {self._n} environments, first in number {first}: {text}")


# --- Gymnasium's random generator for each of many environments, with all their states in one array ---
T = TypeVar("T")
_WORD, _LOW = 64, 2**64 - 1


class Generators:
    """`n` generators of NumPy's kind PCG64, which Gymnasium's environments draw from.

    `rows`, (n, 6) uint64, is their whole state: what is written there is what is drawn from next.
    """

    def __init__(self, n: int) -> None:
        self.rows: U64 = np.zeros((n, 6), np.uint64)
        self._generator = np.random.Generator(np.random.PCG64(0))

    def seed(self, row: int, seed: int) -> None:
        """Start a generator anew, as Gymnasium does with a seed."""
        self._keep(row, np.random.PCG64(np.random.SeedSequence(seed)))

    def draw(self, row: int, draw: Callable[[np.random.Generator], T]) -> T:
        """What `draw` makes of a generator, which goes on from there."""
        bits = self._generator.bit_generator
        high, low, step_high, step_low, has, left = (int(word) for word in self.rows[row])
        state = {"state": high << _WORD | low, "inc": step_high << _WORD | step_low}
        bits.state = {"bit_generator": "PCG64", "state": state, "has_uint32": has, "uinteger": left}
        drawn = draw(self._generator)
        self._keep(row, bits)
        return drawn

    def _keep(self, row: int, bits: np.random.BitGenerator) -> None:
        found = bits.state
        state, step = found["state"]["state"], found["state"]["inc"]
        words = (state >> _WORD, state & _LOW, step >> _WORD, step & _LOW, found["has_uint32"], found["uinteger"])
        self.rows[row] = words


_COMMON = ("xml_file", "frame_skip", "max_episode_steps")


@dataclasses.dataclass(frozen=True, eq=False)
class MujocoEnv(SpacedSpec):
    """One of Gymnasium's MuJoCo environments, stepped natively.

    `kwargs` are those of Gymnasium's constructor, without the ones for rendering, and `max_episode_steps`.
    """

    id: str
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    model: mujoco.MjModel = dataclasses.field(init=False)
    """The compiled model."""
    frame_skip: int = dataclasses.field(init=False)
    """Simulation steps per environment step."""

    def __post_init__(self) -> None:
        self._check()
        kind, given = task_class(self.id), self.kwargs
        path = find(str(given.get("xml_file", kind.model_file)))
        compiled = compiled_model(path)
        content = repr((self.id, sorted(given.items()), mujoco.__version__)).encode()
        vars(self).update(
            model=compiled, frame_skip=given.get("frame_skip", kind.frame_skip), n_actions=0,
            action_size=int(compiled.nu), action_low=compiled.actuator_ctrlrange[:, 0].astype(np.float32),
            action_high=compiled.actuator_ctrlrange[:, 1].astype(np.float32),
            max_steps=given.get("max_episode_steps", kind.max_steps), reward_threshold=kind.reward_threshold,
            version=hashlib.sha256(content + path.read_bytes()).hexdigest()[:16],
        )  # fmt: skip
        try:
            size = self.task().obs_size()
        except KeyError as error:  # a body that the task needs
            raise UsageError(f"xml_file {str(path)!r} does not fit {self.id!r}: {error.args[0]}") from error
        vars(self).update(obs_size=size, obs_low=np.full(size, -np.inf, np.float32))
        vars(self).update(obs_high=-self.obs_low)

    def _check(self) -> None:
        if self.id not in TASKS:
            raise UnknownNameError("MuJoCo environment", self.id, TASKS)
        if library() is None:
            raise UsageError(f"MuJoCo {mujoco.__version__} cannot simulate batches: install version 4.0 or later")
        known = {*task_class(self.id).options, *_COMMON}
        unknown = sorted(self.kwargs.keys() - known)
        if unknown:
            raise UsageError(
                f"environment {self.id!r} does not take the option {unknown[0]!r} when it is stepped natively: choose "
                f"from {', '.join(sorted(known))}, or use mileage.envs.GymnasiumEnv"
            )
        for name in ("frame_skip", "max_episode_steps"):
            value = self.kwargs.get(name, 1)
            require(isinstance(value, int) and value >= 1, name, value, "a whole number of at least 1")

    def task(self) -> Task:
        """Observations and rewards, with memory of their own."""
        options = {name: value for name, value in self.kwargs.items() if name not in _COMMON}
        return task_class(self.id)(self.model, options, self.frame_skip)

    def vector(
        self, n_envs: int, *, seed: int = 0, threads: int | None = None, processes: bool = False
    ) -> MujocoVecEnv:
        """`n_envs` copies on up to `threads` threads; they need no processes."""
        return MujocoVecEnv(self, n_envs, seed=seed, threads=threads)


class MujocoVecEnv(VectorBase):
    """`n_envs` copies of a MuJoCo environment over arrays that are allocated once.

    What `reset` and `step` return are these arrays themselves, overwritten by the next step: copy what you keep. An
    episode that ends starts again in the same step, as in `VecEnv`. Environment i reset with seed s goes through the
    same episodes, one after the other, as Gymnasium's environment reset with seed s, whatever i, `n_envs` and `threads`
    are.
    """

    spec: MujocoEnv
    pausable = True

    def __init__(
        self, env: MujocoEnv | str, n_envs: int, *, seed: int = 0, threads: int | None = None,
        max_steps: int | None = None,
    ) -> None:  # fmt: skip
        """Allocate simulations and arrays.

        `threads` is an upper bound (default: all cores). `max_steps` replaces the environment's own time limit; 0 means
        none.
        """
        spec = MujocoEnv(env) if isinstance(env, str) else env
        super().__init__(spec, n_envs)
        self.max_steps = spec.max_steps if max_steps is None else max_steps
        self.threads = min(most_threads(threads), n_envs)
        self._task = spec.task()
        kind = type(self._task)
        self._sim = ModelBatch(spec.model, n_envs, self.threads, kind.outputs, contact_forces=kind.contact_forces)
        self.elapsed: I64 = np.zeros(n_envs, np.int64)
        self._generators = Generators(n_envs)
        self._seed(seed, np.arange(n_envs))

    def reset(self, *, seed: Seed | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start all episodes anew and return (obs (N, O) float32, {}).

        An int seeds all environments; a sequence of N ints seeds each as Gymnasium's environment would be; without a
        seed the streams go on. `options={"reset_mask": mask}` with (N,) bool resets (and seeds) only those marked.
        """
        marked = self._marked(options)
        rows = np.arange(self.num_envs) if marked is None else np.flatnonzero(marked)
        if seed is not None:
            self._seed(seed, rows)
        self._restart(rows)
        return self.obs, {}

    def step(self, actions: ArrayLike) -> Step:
        """Step every environment once.

        `actions` is (N, A) numbers; like Gymnasium, values beyond the bounds count as they are in the cost of control,
        and act like the bounds. Returns obs (N, O) float32, rewards (N,) float32, terminated (N,) bool, truncated (N,)
        bool and infos.
        """
        self._advance(actions)
        np.logical_or(self.terminated, self.truncated, out=self._done)
        if not self._done.any():
            return self.obs, self.reward, self.terminated, self.truncated, {}
        np.copyto(self.final_obs, self.obs, where=self._done[:, None])
        self._restart(np.flatnonzero(self._done))
        return self._ended()

    def begin(self, row: int, seed: int) -> None:
        """Start an episode in one environment; the others stay as they are."""
        self._generators.seed(row, seed)
        self._restart(np.array([row]))

    def step_some(self, actions: ArrayLike, playing: Bool) -> Step:
        """Step the environments that `playing` (N,) marks."""
        self._advance(actions, np.flatnonzero(playing))
        return self.obs, self.reward, self.terminated, self.truncated, {}

    def _advance(self, actions: ArrayLike, rows: I64 | None = None) -> None:
        """Step all environments, or those of `rows` (R,); what the others show stays."""
        self._check_open()
        chosen = self._checked_actions(actions).astype(np.float32, copy=False)
        sim, task = self._sim, self._task
        task.remember(sim)
        sim.ctrl[:] = chosen
        sim.step(self.spec.frame_skip, rows)
        task.observe(sim, self.obs)
        task.judge(sim, chosen, self.reward, self.terminated)
        self.elapsed[slice(None) if rows is None else rows] += 1
        np.equal(self.elapsed, self.max_steps, out=self.truncated)
        np.greater(self.truncated, self.terminated, out=self.truncated)

    def saved_arrays(self) -> dict[str, Array]:
        """The whole state: simulations, what was computed of them last, ages, random generators and observations."""
        self._check_open()
        own = {"elapsed": self.elapsed, "rng": self._generators.rows, "obs": self.obs}
        return {"state": self._sim.state, **self._sim.outputs, **own}

    def close(self) -> None:
        """Free simulations and threads; the arrays stay."""
        self._sim.close()
        self.closed = True

    def _restart(self, rows: I64) -> None:
        """Begin new episodes in `rows` (R,)."""
        self._check_open()
        starts = [self._generators.draw(int(row), self._task.first_state) for row in rows]
        self._sim.start(rows, np.array([qpos for qpos, _ in starts]), np.array([qvel for _, qvel in starts]))
        self.elapsed[rows] = 0
        # The others are written again as they are, which is cheaper than to pick out the new ones.
        self._task.observe(self._sim, self.obs)

    def _check_open(self) -> None:
        if self.closed:
            raise UsageError(f"environment {self.spec.id!r} is closed: make a new one")

    def _seed(self, seed: Seed, rows: I64) -> None:
        seeds = self._seeds(seed)
        for row in rows:
            self._generators.seed(int(row), seeds[row])
