"""Replay buffers side by side: storing and sampling transitions, in one process with alternating arms.

Every library gets the arrays in the form it wants, made beforehand, so that only its own work is timed. Each round
times every arm for a few milliseconds; medians over the rounds are compared. `push_batch` hands over the same arrays
again and again, as a vector environment with memory of its own does; `push_batch, new arrays` other ones each time.
Needs the libraries to compare with: rlox, cpprb, stable-baselines3, tianshou; one that is not installed is left out.

    PYTHONPATH=src peers/bin/python benchmarks/replay.py
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import replay_plot
from _harness import Report, markdown_table
from mileage.buffers import PrioritizedReplay, ReplayBuffer
from mileage.kernels.machine.frames import shift, u8
from mileage.kernels.machine.jit import kernel
from mileage.kernels.ring import begin_row, commit_row, store
from mileage.measure import Arm
from mileage.measure.timing import Work, compare

N, BATCH = 64, 256
Call = Callable[[], Any]
OURS = ("mileage stored", "mileage derived")
# Sets of arrays that `push_batch, new arrays` goes through.
FRESH = 7


def in_turn(push: Callable[..., Any], batch: Any) -> Call:
    """Push copies of `batch`, a tuple or dict of arrays, so that no call gets the arrays of the one before."""
    turn = itertools.cycle([copy.deepcopy(batch) for _ in range(FRESH)])
    if isinstance(batch, dict):
        return lambda: push(**next(turn))
    return lambda: push(*next(turn))


class Data:
    """Transitions of 64 environments in the forms the libraries take."""

    def __init__(self, size: int, dtype: Any) -> None:
        rng = np.random.default_rng(0)
        self.size, self.dtype = size, np.dtype(dtype)
        self.obs = (rng.random((N, size)) * 200).astype(dtype)
        self.next_obs = (rng.random((N, size)) * 200).astype(dtype)
        self.actions = rng.random((N, 1)).astype(np.float32)
        self.rewards = rng.random(N).astype(np.float32)
        self.flags = np.zeros(N, np.bool_)


def timed(arms: dict[str, Call], rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds per call of every arm: median and best over alternating rounds, wall-clock and CPU."""
    found = compare("a call", [Arm(name, Work(call)) for name, call in arms.items()], rounds=rounds)
    return {
        each.arm: {"median_us": 1e6 * each.median, "best_us": 1e6 * each.best, "median_cpu_us": 1e6 * each.median_cpu}
        for each in found.measurements
    }


def ours(data: Data, rows: int, next_obs: str) -> dict[str, Call]:
    one = ReplayBuffer(rows, data.size, 1, obs_dtype=data.dtype, next_obs=next_obs)
    many = ReplayBuffer(rows, data.size, 1, obs_dtype=data.dtype, n_envs=N, next_obs=next_obs)
    batch = (data.obs, data.actions, data.rewards, data.flags, data.flags, data.next_obs)
    for _ in range(rows // N + 2):
        many.push_batch(*batch)
    obs, action, following = data.obs[0], data.actions[0], data.next_obs[0]
    for _ in range(rows + 2):
        one.push(obs, action, 1.0, False, False, following)
    out = many.batch(BATCH)
    return {
        "push": lambda: one.push(obs, action, 1.0, False, False, following),
        "push_batch": lambda: many.push_batch(*batch),
        "push_batch, new arrays": in_turn(many.push_batch, batch),
        "sample": lambda: many.sample(BATCH, out),
        "sample, new memory": lambda: many.sample(BATCH),
    }


def rlox_arms(data: Data, rows: int) -> dict[str, Call]:
    import rlox

    if data.dtype != np.float32:
        return {}  # float32 only
    buffer = rlox.ReplayBuffer(rows, data.size, 1)
    flags = data.flags.astype(np.uint8)
    batch = (data.obs.ravel(), data.next_obs.ravel(), data.actions.ravel(), data.rewards, flags, flags)
    for _ in range(rows // N + 1):
        buffer.push_batch(*batch)
    obs, action, following = data.obs[0], data.actions[0], data.next_obs[0]
    seeds = itertools.count()
    return {
        "push": lambda: buffer.push(obs, action, 1.0, False, False, following),
        "push_batch": lambda: buffer.push_batch(*batch),
        "push_batch, new arrays": in_turn(buffer.push_batch, batch),
        "sample": lambda: buffer.sample(BATCH, next(seeds)),
    }


def cpprb_arms(data: Data, rows: int) -> dict[str, Call]:
    import cpprb

    shape = {"shape": data.size, "dtype": data.dtype}
    fields = {"obs": shape, "next_obs": shape, "act": {"shape": 1}, "rew": {}, "done": {}, "cut": {}}
    buffer = cpprb.ReplayBuffer(rows, fields)
    flags = data.flags.astype(np.float32)
    batch = {
        "obs": data.obs,
        "next_obs": data.next_obs,
        "act": data.actions,
        "rew": data.rewards,
        "done": flags,
        "cut": flags,
    }
    for _ in range(rows // N + 1):
        buffer.add(**batch)
    single = {name: array[0] for name, array in batch.items()}
    return {
        "push": lambda: buffer.add(**single),
        "push_batch": lambda: buffer.add(**batch),
        "push_batch, new arrays": in_turn(buffer.add, batch),
        "sample": lambda: buffer.sample(BATCH),
    }


def sb3_arms(data: Data, rows: int) -> dict[str, Call]:
    from gymnasium.spaces import Box
    from stable_baselines3.common.buffers import ReplayBuffer as Sb3

    low, high = (0, 255) if data.dtype == np.uint8 else (-np.inf, np.inf)
    spaces = (Box(low, high, (data.size,), data.dtype), Box(-1, 1, (1,), np.float32))
    one, many = (Sb3(rows, *spaces, device="cpu", n_envs=n) for n in (1, N))
    infos: list[dict[str, Any]] = [{} for _ in range(N)]
    batch = (data.obs, data.next_obs, data.actions, data.rewards, data.flags, infos)
    single = tuple(part[:1] for part in batch)
    for _ in range(rows // N + 1):
        many.add(*batch)
    for _ in range(rows if data.size > 1000 else 0):  # so that no push is the first to touch its memory
        one.add(*single)
    return {
        "push": lambda: one.add(*single),
        "push_batch": lambda: many.add(*batch),
        "push_batch, new arrays": in_turn(many.add, batch),
        "sample": lambda: many.sample(BATCH),
    }


def tianshou_arms(data: Data, rows: int) -> dict[str, Call]:
    from tianshou.data import Batch, VectorReplayBuffer
    from tianshou.data import ReplayBuffer as Tianshou

    def step(rows_: slice | int) -> Any:
        return Batch(
            obs=data.obs[rows_],
            act=data.actions[rows_],
            rew=data.rewards[rows_],
            terminated=data.flags[rows_],
            truncated=data.flags[rows_],
            obs_next=data.next_obs[rows_],
            info=Batch(),
        )

    one, many = Tianshou(rows), VectorReplayBuffer(rows, N)
    batch, single, environments = step(slice(None)), step(0), np.arange(N)
    for _ in range(rows // N + 1):
        many.add(batch, environments)
    for _ in range(rows if data.size > 1000 else 0):
        one.add(single)
    return {
        "push": lambda: one.add(single),
        "push_batch": lambda: many.add(batch, environments),
        "push_batch, new arrays": in_turn(many.add, (batch, environments)),
        "sample": lambda: many.sample(BATCH),
    }


LIBRARIES: dict[str, Callable[[Data, int], dict[str, Call]]] = {
    "mileage stored": lambda data, rows: ours(data, rows, "stored"),
    "mileage derived": lambda data, rows: ours(data, rows, "derived"),
    "rlox": rlox_arms,
    "cpprb": cpprb_arms,
    "sb3": sb3_arms,
    "tianshou": tianshou_arms,
}


def uniform(rounds: int) -> Iterator[dict[str, Any]]:
    cases = ((4, np.float32, 100_032), (4, np.uint8, 100_032), (28_224, np.float32, 1_024), (28_224, np.uint8, 2_048))
    for size, dtype, rows in cases:
        data = Data(size, dtype)
        arms: dict[str, dict[str, Call]] = {}
        for name, make in LIBRARIES.items():
            with contextlib.suppress(ImportError):
                arms[name] = make(data, rows)
        for operation in ("push", "push_batch", "push_batch, new arrays", "sample", "sample, new memory"):
            chosen = {name: library[operation] for name, library in arms.items() if operation in library}
            yield {
                "operation": operation,
                "obs": size,
                "dtype": str(data.dtype),
                "us": timed(chosen, rounds if size == 4 else max(5, rounds // 4)),
            }


def prioritized(rounds: int, entries: int = 1_000_000) -> dict[str, Any]:
    """Sample 256 and update their priorities, with a million entries of observation size 4."""
    rng = np.random.default_rng(0)
    fresh = [rng.random(BATCH).astype(np.float32) + 0.01 for _ in range(64)]
    turn = itertools.count()
    obs, one = rng.random((entries, 4)).astype(np.float32), np.ones(entries, np.float32)
    flags = np.zeros(entries, np.bool_)
    arms: dict[str, Call] = {}

    mine = PrioritizedReplay(entries, 4)
    mine.push_batch(obs, one, one, flags, flags, obs)
    out = mine.batch(BATCH)

    def use_mine() -> None:
        mine.sample(BATCH, out)
        mine.update_priorities(out.indices, fresh[next(turn) % 64])

    arms["mileage"] = use_mine
    with contextlib.suppress(ImportError):
        import rlox

        theirs = rlox.PrioritizedReplayBuffer(entries, 4, 1, 0.6, 0.4)
        for i in range(entries):
            theirs.push(obs[i], one[:1], 1.0, False, False, obs[i])

        def use_rlox() -> None:
            batch = theirs.sample(BATCH, next(turn))
            theirs.update_priorities(batch["indices"], fresh[next(turn) % 64].astype(np.float64))

        arms["rlox"] = use_rlox
    with contextlib.suppress(ImportError):
        import cpprb

        fields = {"obs": {"shape": 4}, "next_obs": {"shape": 4}, "act": {"shape": 1}, "rew": {}, "done": {}}
        cpp = cpprb.PrioritizedReplayBuffer(entries, fields)
        cpp.add(obs=obs, next_obs=obs, act=one[:, None], rew=one, done=one)

        def use_cpprb() -> None:
            batch = cpp.sample(BATCH, 0.4)
            cpp.update_priorities(batch["indexes"], fresh[next(turn) % 64])

        arms["cpprb"] = use_cpprb
    with contextlib.suppress(ImportError):
        from tianshou.data import PrioritizedReplayBuffer
        from tianshou.data import ReplayBuffer as Tianshou

        ts = PrioritizedReplayBuffer(entries, alpha=0.6, beta=0.4)
        ts.update(Tianshou.from_data(obs, one, one, flags, flags, flags, obs))

        def use_tianshou() -> None:
            _, indices = ts.sample(BATCH)
            ts.update_weight(indices, fresh[next(turn) % 64])

        arms["tianshou"] = use_tianshou
    return {"operation": "prioritized sample + update", "entries": entries, "us": timed(arms, rounds)}


def scaling(rounds: int) -> list[dict[str, Any]]:
    """Cost of sampling 256 of 10⁴ to 10⁷ entries (observation size 4), uniform and prioritized."""
    rows = []
    for entries in (10**4, 10**5, 10**6, 10**7):
        obs, flat = np.zeros((10**4, 4), np.float32), np.zeros(10**4, np.float32)
        arms: dict[str, Call] = {}
        for name, kind in (("uniform", ReplayBuffer), ("prioritized", PrioritizedReplay)):
            buffer = kind(entries, 4)
            for _ in range(entries // 10**4):
                buffer.push_batch(obs, flat, flat, flat.astype(np.bool_), flat.astype(np.bool_), obs)
            out = buffer.batch(BATCH)
            arms[name] = lambda buffer=buffer, out=out: buffer.sample(BATCH, out)  # type: ignore[misc]
        result = timed(arms, rounds)
        rows.append({"entries": entries, "ns_per_sample": {k: v["best_us"] / BATCH * 1e3 for k, v in result.items()}})
    return rows


@kernel
def collect(rings: Any, obs: Any, actions: Any, reward: Any, steps: Any) -> Any:
    """Store `steps` rows as a collector does, from observations it has just computed."""
    ring = rings[0]
    for _ in range(steps):
        row = begin_row(ring)
        for env in range(ring.n_envs):
            at = shift(u8(obs), env * ring.obs_bytes)
            store(ring, env, row, at, shift(u8(actions), env * ring.action_bytes), reward, False, False, at)
        commit_row(ring)
    return steps


def collector(rounds: int) -> dict[str, Any]:
    """Nanoseconds per transition where the loop over steps runs inside a kernel, as in our collectors."""
    data = Data(4, np.float32)
    steps = 100
    addresses = np.uint64(data.obs.ctypes.data), np.uint64(data.actions.ctypes.data)
    arms: dict[str, Call] = {}
    for kind in ("stored", "derived"):
        buffer = ReplayBuffer(100_032, 4, 1, n_envs=N, next_obs=kind)
        arms[kind] = lambda buffer=buffer: collect(buffer.frame, *addresses, np.float32(1.0), steps)  # type: ignore[misc]
    result = timed(arms, rounds)
    return {kind: values["median_cpu_us"] * 1e3 / (steps * N) for kind, values in result.items()}


def show(row: dict[str, Any]) -> None:
    label = f"{row['operation']} {row.get('obs', '')} {row.get('dtype', '')}".strip()
    cells = (
        f"{name} {us['best_us']:,.2f}/{us['median_us']:,.2f}/{us['median_cpu_us']:,.2f}"
        for name, us in row["us"].items()
    )
    print(f"{label:32} µs best/median/median CPU: " + " · ".join(cells), flush=True)


def cells(row: dict[str, Any], arms: list[str]) -> list[str]:
    """Medians in microseconds, ours in bold, with how many times as long as the better of ours the others took."""
    best = min(us["median_us"] for name, us in row["us"].items() if name.startswith("mileage"))
    out = []
    for arm in arms:
        us = row["us"].get(arm)
        if us is None:
            out.append("–")
        elif arm.startswith("mileage"):
            out.append(f"**{us['median_us']:,.2f}**")
        else:
            out.append(f"{us['median_us']:,.2f} ({us['median_us'] / best:,.2f}×)")
    return out


def tables(result: dict[str, Any]) -> list[str]:
    """Everything measured, to read."""
    arms = list(LIBRARIES)
    calls = [f"{row['operation']}, obs {row['obs']:,}, {row['dtype']}" for row in result["rows"]]
    rows = [[call, *cells(row, arms)] for call, row in zip(calls, result["rows"], strict=True)]
    peers = ["mileage", *arms[2:]]
    stored = result["collector_ns_per_transition"]
    others = {}
    for row in result["rows"]:
        if row["operation"] == "push_batch" and row["obs"] == 4 and row["dtype"] == "float32":
            others = {name: us["median_us"] * 1e3 / N for name, us in row["us"].items() if name not in OURS}
    return [
        "Microseconds per call, median; in brackets how many times as long as the faster of ours.",
        markdown_table(["call", *arms], rows),
        "## A million prioritised entries: sample 256, update their priorities",
        markdown_table(["µs", *peers], [["sample + update", *cells(result["prioritized"], peers)]]),
        "## Nanoseconds to store one transition of observation size 4",
        "Ours inside a collector's kernel; the others by `push_batch` of 64, their cheapest way.",
        markdown_table(
            ["", *(f"mileage {kind}" for kind in stored), *others],
            [["ns", *(f"**{ns:.1f}**" for ns in stored.values()), *(f"{ns:.1f}" for ns in others.values())]],
        ),
        "## Nanoseconds per sampled entry, by entries held",
        markdown_table(
            ["entries", "uniform", "prioritised"],
            [
                [f"{row['entries']:,}", *(f"{row['ns_per_sample'][kind]:.0f}" for kind in ("uniform", "prioritized"))]
                for row in result["scaling"]
            ],
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, help="directory for the result; benchmarks/results by default")
    parser.add_argument("--plot", type=Path, help="SVG file for the cost of sampling by entries held")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # peers warn about each other's versions
    rows = []
    for row in uniform(args.rounds):
        show(row)
        rows.append(row)
    result = {
        "rows": rows,
        "prioritized": prioritized(args.rounds),
        "scaling": scaling(args.rounds),
        "collector_ns_per_transition": collector(args.rounds),
    }
    show(result["prioritized"])
    report = Report("replay", "Replay buffers", tables(result), result)
    print("\n\n".join(report.tables), *(report.write(args.out) if args.out else report.write()), sep="\n")
    if args.plot:
        args.plot.write_text(replay_plot.sampling_cost(result["scaling"]))


if __name__ == "__main__":
    main()
