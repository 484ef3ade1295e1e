"""CartPole stepping side by side: mileage, its peers and a plain C loop, alternating in one run.

    flock /tmp/mileage-bench.lock python benchmarks/env_step.py --out benchmarks/results/env_step.json

Every arm steps the same number of environments with random actions prepared in the form it likes best; episodes that
end start again. A sample is the time of many steps divided by their number; arms take turns, and the table shows the
median of all rounds. A peer that is not installed is left out by name.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mileage.envs import VecEnv, native, registered, resolve
from mileage.kernels._jit import kernel
from mileage.kernels._pointers import call_int64, pointer_to
from mileage.kernels.random import streams
from mileage.meter import fingerprint

SIZES = (8, 64, 1024)
# Shorter than a scheduler's time slice, so that on a busy machine most samples are of one arm alone.
SAMPLE_SECONDS = 0.002
ACTION_ROWS = 64
EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "custom_env.py"

# The same dynamics and bookkeeping as plainly as C allows; the generator is the one of mileage.kernels.random.
C_SOURCE = r"""
#include <math.h>
#include <stdint.h>

static uint64_t next(uint64_t *rng) {
    uint64_t x = rng[0] + (++rng[1]) * 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

static void reset(float *state, uint64_t *rng) {
    for (int j = 0; j < 4; j++) state[j] = -0.05f + 0.1f * ((float)(next(rng) >> 40) * (1.0f / 16777216.0f));
}

int64_t steps(float *state, int64_t *elapsed, uint64_t *rng, const float *actions, float *obs, float *reward,
              uint8_t *terminated, uint8_t *truncated, float *final_obs, int64_t n, int64_t max_steps, int64_t count,
              int64_t action_rows) {
    int64_t done = 0;
    for (int64_t k = 0; k < count; k++) {
        const float *action = actions + (k % action_rows) * n;
        for (int64_t i = 0; i < n; i++) {
            float *s = state + 4 * i;
            float x = s[0], x_dot = s[1], theta = s[2], theta_dot = s[3];
            float force = action[i] == 1.0f ? 10.0f : -10.0f;
            float sine = sinf(theta), cosine = cosf(theta);
            float push = (force + 0.05f * theta_dot * theta_dot * sine) / 1.1f;
            float theta_acc = (9.8f * sine - cosine * push) / (0.5f * (4.0f / 3.0f - 0.1f * cosine * cosine / 1.1f));
            float x_acc = push - 0.05f * theta_acc * cosine / 1.1f;
            s[0] = x + 0.02f * x_dot;
            s[1] = x_dot + 0.02f * x_acc;
            s[2] = theta + 0.02f * theta_dot;
            s[3] = theta_dot + 0.02f * theta_acc;
            reward[i] = 1.0f;
            elapsed[i] += 1;
            terminated[i] = fabsf(s[0]) > 2.4f || fabsf(s[2]) > 0.20943951f;
            truncated[i] = !terminated[i] && elapsed[i] >= max_steps;
            if (terminated[i] || truncated[i]) {
                for (int j = 0; j < 4; j++) final_obs[4 * i + j] = s[j];
                reset(s, rng + 2 * i);
                elapsed[i] = 0;
                done++;
            }
            for (int j = 0; j < 4; j++) obs[4 * i + j] = s[j];
        }
    }
    return done;
}
"""

Arm = Callable[[int], Any]  # takes a number of steps


def random_actions(n: int) -> Any:
    return np.random.default_rng(0).integers(0, 2, (ACTION_ROWS, n))


def in_python(step: Callable[[Any], Any], actions: list[Any]) -> Arm:
    """Call `step` from Python, as a user's training loop does."""

    def run(count: int) -> None:
        for k in range(count):
            step(actions[k % ACTION_ROWS])

    return run


def mileage_step(n: int) -> Arm:
    vec = VecEnv("CartPole-v1", n, threads=1)
    vec.reset(seed=0)
    return in_python(vec.step, list(random_actions(n)))


@kernel
def _native_loop(address: Any, call: Any, actions: Any, n: Any, max_steps: Any, count: Any) -> Any:
    done = 0
    for k in range(count):
        row = pointer_to(actions[k % actions.shape[0]])
        done += call_int64(
            address, (call[0], call[1], call[2], row, call[3], call[4], call[5], call[6], call[7], n, max_steps)
        )
    return done


def mileage_native(n: int) -> Arm:
    """The environment as a collector calls it: by address, from compiled code."""
    vec = VecEnv("CartPole-v1", n, threads=1)
    vec.reset(seed=0)
    call = vec._call(slice(0, n))
    actions = random_actions(n).astype(np.float32)
    return lambda count: _native_loop(int(call[0]), call[1:9], actions, n, vec.max_steps, count)


def c_library() -> Any:
    directory = Path(tempfile.mkdtemp())
    (directory / "cartpole.c").write_text(C_SOURCE)
    command = ["gcc", "-O3", "-march=native", "-shared", "-fPIC", "cartpole.c", "-o", "cartpole.so", "-lm"]
    subprocess.run(command, cwd=directory, check=True)
    function = ctypes.CDLL(str(directory / "cartpole.so")).steps
    function.argtypes = [ctypes.c_void_p] * 9 + [ctypes.c_int64] * 4
    function.restype = ctypes.c_int64
    return function


def c_arguments(n: int) -> tuple[list[int], Any]:
    """Pointers for the C function, and what keeps them valid."""
    arrays = VecEnv("CartPole-v1", n, threads=1)
    arrays.reset(seed=0)
    actions = random_actions(n).astype(np.float32)
    rows = (arrays.state, arrays.elapsed, arrays.rng, actions, arrays.obs, arrays.reward)
    rest = (arrays.terminated, arrays.truncated, arrays.final_obs)
    return [row.ctypes.data for row in (*rows, *rest)], (arrays, actions)


def plain_c(n: int) -> Arm:
    """All steps inside one call of the C function: no Python in its time."""
    (pointers, keep), function = c_arguments(n), c_library()
    return lambda count: (function(*pointers, n, 500, count, ACTION_ROWS), keep)


def c_from_python(n: int) -> Arm:
    """One call of the C function per step, through ctypes."""
    (pointers, keep), function = c_arguments(n), c_library()
    rows = [pointers[3] + 4 * n * k for k in range(ACTION_ROWS)]
    head, tail = pointers[:3], pointers[4:]
    return in_python(lambda row: (function(*head, row, *tail, n, 500, 1, 1), keep), rows)


def gymnasium_vector(n: int) -> Arm:
    import gymnasium

    envs = gymnasium.make_vec("CartPole-v1", num_envs=n, vectorization_mode="vector_entry_point")
    envs.reset(seed=0)
    return in_python(envs.step, list(random_actions(n)))


def rlox(n: int) -> Arm:
    import rlox as library

    envs = library.VecEnv(n, seed=0, env_id="CartPole-v1")
    envs.reset_all(seed=0)
    return in_python(envs.step_all, list(random_actions(n).astype(np.uint32)))


def envpool(n: int) -> Arm:
    import envpool as library

    envs = library.make("CartPole-v1", env_type="gymnasium", num_envs=n, num_threads=1, seed=0)
    envs.reset()
    return in_python(envs.step, list(random_actions(n).astype(np.int32)))


def gymnax(n: int) -> Arm:
    """One jitted scan over all steps, the way JAX is fastest; compiled before it is timed."""
    import gymnax as library
    import jax
    import jax.numpy as jnp

    warnings.filterwarnings("ignore", message=".*precision lowered.*")
    env, params = library.make("CartPole-v1")
    keys = jax.random.split(jax.random.PRNGKey(0), n)
    _, state = jax.vmap(env.reset, in_axes=(0, None))(keys, params)
    actions = jnp.asarray(random_actions(n))

    def step(carry: Any, action: Any) -> Any:
        key, state = carry
        key, part = jax.random.split(key)
        obs, state, reward, done, _ = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
            jax.random.split(part, n), state, action, params
        )
        return (key, state), (obs[0, 0], reward.sum(), done.sum())

    scan = jax.jit(lambda carry: jax.lax.scan(step, carry, actions))
    carry = (jax.random.PRNGKey(1), state)

    def run(count: int) -> None:
        nonlocal carry
        for _ in range(max(1, count // ACTION_ROWS)):
            carry, out = scan(carry)
        jax.block_until_ready((carry, out))

    run.granularity = ACTION_ROWS  # type: ignore[attr-defined]
    return run


ARMS: dict[str, Callable[[int], Arm]] = {
    "mileage": mileage_step,
    "mileage, called natively": mileage_native,
    "plain C": plain_c,
    "plain C, called from Python": c_from_python,
    "gymnasium": gymnasium_vector,
    "rlox": rlox,
    "gymnax": gymnax,
    "envpool": envpool,
}
PEERS = ("gymnasium", "rlox", "gymnax", "envpool")


def measure(arms: dict[str, Arm], rounds: int) -> dict[str, list[float]]:
    """Microseconds per step of each arm, in turns."""
    counts = {}
    for name, arm in arms.items():
        arm(ACTION_ROWS)  # compile and warm up
        start = time.perf_counter()
        arm(ACTION_ROWS)
        per_step = (time.perf_counter() - start) / ACTION_ROWS
        unit = getattr(arm, "granularity", 1)
        counts[name] = max(1, round(SAMPLE_SECONDS / per_step / unit)) * unit
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, arm in arms.items():
            start = time.perf_counter()
            arm(counts[name])
            samples[name].append((time.perf_counter() - start) / counts[name] * 1e6)
    return samples


def build(n: int) -> dict[str, Arm]:
    arms = {}
    for name, factory in ARMS.items():
        try:
            arms[name] = factory(n)
        except ImportError as error:
            print(f"left out: {name} ({error})", file=sys.stderr)
    return arms


def other_envs(rounds: int) -> dict[str, list[float]]:
    """Microseconds per `VecEnv.step` of 1,024 environments, for every native one and the example of the docs."""
    specs = [native(name) for name in registered()]
    if EXAMPLE.exists():
        specs.append(resolve(f"{EXAMPLE}:Lander"))  # type: ignore[arg-type]
    arms = {}
    for spec in specs:
        vec = VecEnv(spec, 1024, threads=1)
        vec.reset(seed=0)
        rng = np.random.default_rng(0)
        shape = (ACTION_ROWS, 1024)
        actions: Any = rng.integers(0, spec.n_actions, shape) if spec.n_actions else rng.uniform(
            spec.action_low, spec.action_high, (*shape, spec.action_size)
        ).astype(np.float32)  # fmt: skip
        arms[spec.id] = in_python(vec.step, list(actions))
    return measure(arms, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=61)
    parser.add_argument("--out", type=Path, help="write all samples as JSON, and the tables beside it as Markdown")
    options = parser.parse_args()
    streams(0, 1, "env")
    results = {n: measure(build(n), options.rounds) for n in SIZES}
    medians = {n: {name: statistics.median(values) for name, values in arms.items()} for n, arms in results.items()}
    names = list(dict.fromkeys(name for arms in medians.values() for name in arms))
    lines = ["| µs per step of N environments | " + " | ".join(f"N = {n}" for n in SIZES) + " |", "|---|" + "---:|" * 3]
    for name in names:
        cells = []
        for n in SIZES:
            value = medians[n].get(name)
            cells.append("–" if value is None else f"{value:.2f} ({value / medians[n]['mileage']:.1f}×)")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    best = {n: min((medians[n][p], p) for p in PEERS if p in medians[n]) for n in SIZES if set(PEERS) & set(medians[n])}
    lines += ["", *(f"N = {n}: {t / medians[n]['mileage']:.1f}× the best peer ({p})." for n, (t, p) in best.items())]
    lines += [
        f"N = {n}: called natively, {medians[n]['plain C'] / medians[n]['mileage, called natively']:.0%} of the speed "
        f"of the plain C loop; both called from Python once per step, "
        f"{medians[n]['plain C, called from Python'] / medians[n]['mileage']:.0%}."
        for n in SIZES
    ]
    others = other_envs(options.rounds)
    lines += ["", "| environment | µs per VecEnv.step of 1,024, median | best | million steps/s at best |"]
    lines += ["|---|---:|---:|---:|"]
    for name, values in others.items():
        lines.append(f"| {name} | {statistics.median(values):.2f} | {min(values):.2f} | {1024 / min(values):.0f} |")
    print("\n".join(lines))
    if options.out:
        record = {"machine": fingerprint().as_dict(), "us_per_step": results, "us_per_step_of_1024": others}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
        options.out.with_suffix(".md").write_text("# CartPole stepping\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
