"""CartPole stepping side by side: mileage, its peers and a plain C loop, alternating in one run.

    PYTHONPATH=src python benchmarks/env_step.py --peer-python peers/bin/python

Every arm steps the same number of environments with random actions prepared in the form it likes best; episodes that
end start again. Peers, their arms and the harness are those of `mileage bench`. The C loop is shown twice: as it is,
all steps in one call, and called from Python once per step, which is what any library that Python steps has to pay.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from _harness import Report, markdown_table, timing_table
from mileage.envs import VecEnv, native, registered, resolve
from mileage.kernels.machine.frames import call_int64, pointer_to
from mileage.kernels.machine.jit import kernel
from mileage.measure import Arm
from mileage.measure.timing import TimingComparison, Work, compare
from mileage.profiling.bench import cases
from mileage.profiling.bench import peers as clone
from mileage.profiling.bench.cases import ACTION_ROWS
from mileage.profiling.bench.suite import Others
from mileage.system import usable_cores

SIZES = (8, 64, 1024)
OURS, NATIVE, PLAIN_C, CALLED_C = "mileage", "mileage, called natively", "plain C", "plain C called from Python"
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


def in_python(name: str, step: Callable[[Any], Any], actions: Sequence[Any]) -> Arm:
    """Call `step` from Python for each of `actions`, as a user's training loop does."""

    def run() -> None:
        for action in actions:
            step(action)

    return Arm(name, Work(run, units=len(actions)))


def started(spec: Any, n: int) -> VecEnv:
    vec = VecEnv(spec, n, threads=1)
    vec.reset(seed=0)
    return vec


@kernel
def _native_loop(address: Any, call: Any, actions: Any, n: Any, max_steps: Any) -> Any:
    done = 0
    for k in range(actions.shape[0]):
        row = pointer_to(actions[k])
        done += call_int64(
            address, (call[0], call[1], call[2], row, call[3], call[4], call[5], call[6], call[7], n, max_steps)
        )
    return done


def called_natively(n: int) -> Arm:
    """The environment as a collector calls it: by address, from compiled code."""
    vec = started("CartPole-v1", n)
    call, actions = vec._call(slice(0, n)), cases.actions(n).astype(np.float32)
    run = functools.partial(_native_loop, int(call[0]), call[1:9], actions, n, vec.max_steps)
    return Arm(NATIVE, Work(lambda: (run(), vec), units=ACTION_ROWS))


@functools.cache
def c_function() -> Any:
    directory = Path(tempfile.mkdtemp())
    (directory / "cartpole.c").write_text(C_SOURCE)
    command = ["gcc", "-O3", "-march=native", "-shared", "-fPIC", "cartpole.c", "-o", "cartpole.so", "-lm"]
    subprocess.run(command, cwd=directory, check=True)
    function = ctypes.CDLL(str(directory / "cartpole.so")).steps
    function.argtypes = [ctypes.c_void_p] * 9 + [ctypes.c_int64] * 4
    function.restype = ctypes.c_int64
    return function


def c_arms(n: int) -> list[Arm]:
    """The C function with all steps in one call, and with one call per step, each on arrays of its own."""
    arms = []
    for name in (PLAIN_C, CALLED_C):
        vec, actions, function = started("CartPole-v1", n), cases.actions(n).astype(np.float32), c_function()
        arrays = (vec.state, vec.elapsed, vec.rng, actions, vec.obs, vec.reward)
        rest = (vec.terminated, vec.truncated, vec.final_obs)
        pointers = [array.ctypes.data for array in (*arrays, *rest)]
        keep = (vec, actions)
        if name == PLAIN_C:
            run = functools.partial(function, *pointers, n, 500, ACTION_ROWS, ACTION_ROWS)
            arms.append(Arm(name, Work(lambda run=run, keep=keep: (run(), keep), units=ACTION_ROWS)))
        else:
            rows = [pointers[3] + 4 * n * k for k in range(ACTION_ROWS)]
            head, tail = pointers[:3], (*pointers[4:], n, 500, 1, 1)

            def step(row: int, head: Any = head, tail: Any = tail, function: Any = function, keep: Any = keep) -> Any:
                return function(*head, row, *tail)

            arms.append(in_python(name, step, rows))
    return arms


def cartpole(n: int, peers: Sequence[Others], rounds: int) -> TimingComparison:
    arms = [in_python(OURS, started("CartPole-v1", n).step, list(cases.actions(n))), called_natively(n), *c_arms(n)]
    for each in peers:
        arms += each.arms(f"{n}", "env-step", {"n_envs": n})
    comparison = compare(f"{n} environments", arms, rounds=rounds, warmups=3)
    for each in peers:
        each.drop()
    return comparison


def other_envs(rounds: int) -> TimingComparison:
    """`VecEnv.step` of 1,024 environments, for every native one and the example of the docs."""
    specs: list[Any] = [native(name) for name in registered()]
    if EXAMPLE.exists():
        specs.append(resolve(f"{EXAMPLE}:Lander"))
    arms = []
    for spec in specs:
        rng, shape = np.random.default_rng(0), (ACTION_ROWS, 1024)
        if spec.n_actions:
            actions: Any = rng.integers(0, spec.n_actions, shape)
        else:
            size = (*shape, spec.action_size)
            actions = rng.uniform(spec.action_low, spec.action_high, size).astype(np.float32)
        arms.append(in_python(spec.id, started(spec, 1024).step, list(actions)))
    return compare("1,024 environments", arms, rounds=rounds, warmups=3)


def verdicts(comparison: TimingComparison) -> list[str]:
    """How this size stands against the best peer and against C, as sentences."""
    own = {OURS, NATIVE, PLAIN_C, CALLED_C}
    peers = [each.arm for each in comparison.measurements if each.arm not in own]
    lines = []
    if peers:
        ratio, name = min((comparison.ratio(peer, OURS), peer) for peer in peers)
        lines.append(f"{comparison.job}: {ratio:,.1f}× as fast as the best peer ({name}).")
        gymnasium = [peer for peer in peers if peer == "Gymnasium"]
        lines += [f"{comparison.job}: {comparison.ratio(peer, OURS):,.1f}× as fast as Gymnasium." for peer in gymnasium]
    lines.append(
        f"{comparison.job}: `VecEnv.step` from Python has {comparison.ratio(PLAIN_C, OURS):.0%} of the speed of the "
        f"C loop without any Python; {comparison.ratio(CALLED_C, OURS):.0%} of C called from Python once per step; "
        f"called natively, as collectors do, {comparison.ratio(PLAIN_C, NATIVE):.0%} of the C loop."
    )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--peer-python", type=Path, action="append", default=[], help="a Python that has the peers")
    parser.add_argument("--dry", action="store_true", help="print, write no result")
    options = parser.parse_args()
    with clone.opened(clone.find(), options.peer_python, usable_cores()) as peers:
        comparisons = [cartpole(n, peers, options.rounds) for n in SIZES]
        versions = {name: version for each in peers for name, version in each.versions.items()}
    others = other_envs(options.rounds)
    rows = [
        [each.arm, f"{each.median * 1e6:.2f}", f"{each.best * 1e6:.2f}", f"{1024 / each.best / 1e6:.0f}"]
        for each in others.measurements
    ]
    header = ["environment", "µs per VecEnv.step of 1,024, median", "best", "million steps/s at best"]
    tables = [
        "Microseconds per step of all environments, one thread; in brackets how many times as long as `VecEnv.step`.",
        timing_table(comparisons, OURS),
        "\n".join(f"- {line}" for comparison in comparisons for line in verdicts(comparison)),
        markdown_table(header, rows),
        "Peers: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
    ]
    print("\n\n".join(tables))
    if not options.dry:
        data = [each.record() for each in (*comparisons, others)]
        print(*Report("env_step", "CartPole stepping", tables, data).write(), sep="\n")


if __name__ == "__main__":
    main()
