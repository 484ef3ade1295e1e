"""Array kernels against rlox, NumPy, torch and jitted JAX, in alternation, on the same numbers.

    flock /tmp/mileage-bench.lock env PYTHONPATH=src python benchmarks/kernels.py

Run it with a Python that has the peers; one that is missing is left out and named. Each arm gets its inputs in the
layout and type it likes best, made beforehand. Every arm's answer is checked against the plain reference before
anything is timed.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from _harness import Report, timing_table
from mileage.kernels import gae, group_advantages, reference, token_kl, vtrace
from mileage.profiling.timing import Arm, Comparison, compare

OURS = "mileage"
SIZES = ((8, 128), (64, 128), (256, 2048))
GAMMA, LAMBDA = 0.99, 0.95
Result = Callable[[], Any]


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def rollout(n_envs: int, horizon: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    return {
        "log_ratios": floats(horizon, n_envs) * np.float32(0.3),
        "rewards": floats(horizon, n_envs),
        "values": floats(horizon, n_envs),
        "terminated": rng.random((horizon, n_envs)) < 0.02,
        "last_values": floats(n_envs),
    }


def first_and_second(result: Any) -> tuple[Any, Any]:
    return np.asarray(result[0]), np.asarray(result[1])


# --- GAE ---


def gae_numpy(rewards: Any, values: Any, terminated: Any, last_values: Any) -> Any:
    advantages = np.empty_like(rewards)
    alive = 1.0 - terminated.astype(np.float32)
    following, trace = last_values, np.zeros_like(last_values)
    for t in range(len(rewards) - 1, -1, -1):
        delta = rewards[t] + np.float32(GAMMA) * following * alive[t] - values[t]
        trace = delta + np.float32(GAMMA * LAMBDA) * alive[t] * trace
        advantages[t] = trace
        following = values[t]
    return advantages, advantages + values


def gae_torch(rewards: Any, values: Any, terminated: Any, last_values: Any) -> Any:
    import torch

    advantages = torch.empty_like(rewards)
    # All that does not depend on the trace is done for all steps at once.
    alive = 1.0 - terminated.to(torch.float32)
    deltas = rewards + GAMMA * torch.cat([values[1:], last_values[None]]) * alive - values
    decay = GAMMA * LAMBDA * alive
    trace = torch.zeros_like(last_values)
    for t in range(len(rewards) - 1, -1, -1):
        trace = torch.addcmul(deltas[t], decay[t], trace)
        advantages[t] = trace
    return advantages, advantages + values


def gae_jax(unroll: int) -> Any:
    import jax
    import jax.numpy as jnp

    @jax.jit
    def run(rewards: Any, values: Any, terminated: Any, last_values: Any) -> Any:
        alive = 1.0 - terminated.astype(jnp.float32)
        deltas = rewards + GAMMA * jnp.concatenate([values[1:], last_values[None]]) * alive - values

        def step(trace: Any, x: Any) -> Any:
            delta, decay = x
            trace = delta + decay * trace
            return trace, trace

        xs = (deltas, GAMMA * LAMBDA * alive)
        _, advantages = jax.lax.scan(step, jnp.zeros_like(last_values), xs, reverse=True, unroll=unroll)
        return advantages, advantages + values

    return run


def gae_arms(n_envs: int, horizon: int) -> Iterator[tuple[str, Result, Result]]:
    arrays = rollout(n_envs, horizon)
    del arrays["log_ratios"]
    inputs = tuple(arrays.values())
    out = np.empty_like(arrays["rewards"]), np.empty_like(arrays["rewards"])
    yield OURS, lambda: gae(*inputs, gamma=GAMMA, lambda_=LAMBDA), first_and_second
    yield f"{OURS}, out=", lambda: gae(*inputs, gamma=GAMMA, lambda_=LAMBDA, out=out), first_and_second
    if installed("rlox"):
        from rlox import compute_gae_batched_f32

        flat = [np.ascontiguousarray(array.T.astype(np.float32)).reshape(-1) for array in inputs[:3]]
        last = arrays["last_values"]
        yield (
            "rlox",
            lambda: compute_gae_batched_f32(*flat, last, horizon, GAMMA, LAMBDA),
            lambda result: tuple(np.asarray(part).reshape(n_envs, horizon).T for part in result),
        )
    yield "NumPy", lambda: gae_numpy(*inputs), first_and_second
    if installed("torch"):
        import torch

        tensors = [torch.from_numpy(array) for array in inputs]
        yield "torch", lambda: gae_torch(*tensors), first_and_second
    yield from jax_arms(gae_jax, inputs)


# --- V-trace ---


def vtrace_numpy(log_ratios: Any, rewards: Any, values: Any, terminated: Any, last_values: Any) -> Any:
    ratios = np.exp(log_ratios)
    rho = c = np.minimum(ratios, np.float32(1.0))
    alive = np.float32(GAMMA) * (1.0 - terminated.astype(np.float32))
    deltas = rho * (rewards + alive * np.concatenate([values[1:], last_values[None]]) - values)
    corrections = np.empty_like(rewards)
    correction = np.zeros_like(last_values)
    for t in range(len(rewards) - 1, -1, -1):
        correction = deltas[t] + alive[t] * c[t] * correction
        corrections[t] = correction
    targets = corrections + values
    following = np.concatenate([targets[1:], last_values[None]])
    return targets, rho * (rewards + alive * following - values)


def vtrace_torch(log_ratios: Any, rewards: Any, values: Any, terminated: Any, last_values: Any) -> Any:
    import torch

    rho = torch.exp(log_ratios).clamp(max=1.0)
    alive = GAMMA * (1.0 - terminated.to(torch.float32))
    deltas = rho * (rewards + alive * torch.cat([values[1:], last_values[None]]) - values)
    decay = alive * rho
    corrections = torch.empty_like(rewards)
    correction = torch.zeros_like(last_values)
    for t in range(len(rewards) - 1, -1, -1):
        correction = torch.addcmul(deltas[t], decay[t], correction)
        corrections[t] = correction
    targets = corrections + values
    return targets, rho * (rewards + alive * torch.cat([targets[1:], last_values[None]]) - values)


def vtrace_jax(unroll: int) -> Any:
    import jax
    import jax.numpy as jnp

    @jax.jit
    def run(log_ratios: Any, rewards: Any, values: Any, terminated: Any, last_values: Any) -> Any:
        rho = jnp.minimum(jnp.exp(log_ratios), 1.0)
        alive = GAMMA * (1.0 - terminated.astype(jnp.float32))
        deltas = rho * (rewards + alive * jnp.concatenate([values[1:], last_values[None]]) - values)

        def step(correction: Any, x: Any) -> Any:
            delta, decay = x
            correction = delta + decay * correction
            return correction, correction

        _, corrections = jax.lax.scan(
            step, jnp.zeros_like(last_values), (deltas, alive * rho), reverse=True, unroll=unroll
        )
        targets = corrections + values
        following = jnp.concatenate([targets[1:], last_values[None]])
        return targets, rho * (rewards + alive * following - values)

    return run


def vtrace_arms(n_envs: int, horizon: int) -> Iterator[tuple[str, Result, Result]]:
    inputs = tuple(rollout(n_envs, horizon).values())
    out = np.empty_like(inputs[0]), np.empty_like(inputs[0])
    yield OURS, lambda: vtrace(*inputs, gamma=GAMMA), first_and_second
    yield f"{OURS}, out=", lambda: vtrace(*inputs, gamma=GAMMA, out=out), first_and_second
    if installed("rlox"):
        from rlox import compute_vtrace

        # It takes one environment at a time.
        rows = [np.ascontiguousarray(array.T.astype(np.float32)) for array in inputs[:4]]
        last = [float(value) for value in inputs[4]]
        yield (
            "rlox",
            lambda: [compute_vtrace(*(row[n] for row in rows), last[n], GAMMA) for n in range(n_envs)],
            lambda result: (np.stack([r[0] for r in result], 1), np.stack([r[1] for r in result], 1)),
        )
    yield "NumPy", lambda: vtrace_numpy(*inputs), first_and_second
    if installed("torch"):
        import torch

        tensors = [torch.from_numpy(array) for array in inputs]
        yield "torch", lambda: vtrace_torch(*tensors), first_and_second
    yield from jax_arms(vtrace_jax, inputs)


def jax_arms(make: Any, inputs: Any) -> Iterator[tuple[str, Result, Result]]:
    """A jitted scan, plain and unrolled: unrolling helps it at some sizes."""
    if not installed("jax"):
        return
    import jax

    device = [jax.device_put(array) for array in inputs]
    for unroll, name in ((1, "JAX scan"), (8, "JAX scan, unroll 8")):
        function = make(unroll)
        yield name, lambda function=function: jax.block_until_ready(function(*device)), first_and_second


# --- token KL ---


def kl_numpy(p: Any, q: Any, estimator: str) -> Any:
    if estimator == "exact":
        return (np.exp(p) * (p - q)).sum(axis=1)
    d = q - p
    return (np.exp(d) - 1.0 - d).sum(axis=1)


def kl_torch(p: Any, q: Any, estimator: str) -> Any:
    import torch

    if estimator == "exact":
        return (torch.exp(p) * (p - q)).sum(1)
    d = q - p
    return (torch.exp(d) - 1.0 - d).sum(1)


def kl_jax(p: Any, q: Any, estimator: str) -> Any:
    import jax.numpy as jnp

    if estimator == "exact":
        return (jnp.exp(p) * (p - q)).sum(1)
    d = q - p
    return (jnp.exp(d) - 1.0 - d).sum(1)


def kl_arms(estimator: Any) -> Iterator[tuple[str, Result, Result]]:
    rng = np.random.default_rng(0)
    p, q = (np.log(rng.dirichlet(np.ones(2048) * 5.0, 32)).astype(np.float32) for _ in range(2))
    out = np.empty(32, np.float32)
    yield OURS, lambda: token_kl(p, q, estimator=estimator), np.asarray
    yield f"{OURS}, out=", lambda: token_kl(p, q, estimator=estimator, out=out), np.asarray
    if installed("rlox"):
        import rlox

        flat = p.reshape(-1), q.reshape(-1)
        if estimator == "exact":
            yield "rlox", lambda: rlox.compute_batch_token_kl_f32(*flat, 2048), np.asarray
        else:
            # Its ratio is the other way round: p/q - 1 - log(p/q).
            yield "rlox", lambda: rlox.compute_batch_token_kl_schulman_f32(*flat[::-1], 2048), np.asarray
    yield "NumPy", lambda: kl_numpy(p, q, estimator), np.asarray
    if installed("torch"):
        import torch

        tensors = torch.from_numpy(p), torch.from_numpy(q)
        yield "torch", lambda: kl_torch(*tensors, estimator), np.asarray
    if installed("jax"):
        import jax

        function_ = jax.jit(kl_jax, static_argnums=2)
        device = jax.device_put(p), jax.device_put(q)
        yield "JAX jit", lambda: jax.block_until_ready(function_(*device, estimator)), np.asarray


# --- group advantages ---


def groups_arms() -> Iterator[tuple[str, Result, Result]]:
    rewards = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
    out = np.empty_like(rewards)
    yield OURS, lambda: group_advantages(rewards), np.asarray
    yield f"{OURS}, out=", lambda: group_advantages(rewards, out=out), np.asarray
    if installed("rlox"):
        from rlox import compute_batch_group_advantages

        flat = rewards.astype(np.float64).reshape(-1)
        yield "rlox", lambda: compute_batch_group_advantages(flat, 8), lambda r: np.asarray(r).reshape(64, 8)

    def by_numpy() -> Any:
        return (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, keepdims=True) + np.float32(1e-6))

    yield "NumPy", by_numpy, np.asarray
    if installed("torch"):
        import torch

        tensor = torch.from_numpy(rewards)

        def by_torch() -> Any:
            std, mean = torch.std_mean(tensor, 1, correction=0, keepdim=True)
            return (tensor - mean) / (std + 1e-6)

        yield "torch", by_torch, np.asarray
    if installed("jax"):
        import jax
        import jax.numpy as jnp

        @jax.jit
        def by_jax(r: Any) -> Any:
            return (r - r.mean(1, keepdims=True)) / (jnp.std(r, 1, keepdims=True) + 1e-6)

        device = jax.device_put(rewards)
        yield "JAX jit", lambda: jax.block_until_ready(by_jax(device)), np.asarray


# --- all of them ---


def jobs() -> Iterator[tuple[str, Any, Iterator[tuple[str, Result, Result]]]]:
    """Name, reference answer and arms of every job."""
    for n_envs, horizon in SIZES:
        arrays = rollout(n_envs, horizon)
        log_ratios = arrays.pop("log_ratios")
        answer: Any = reference.gae(**arrays, gamma=GAMMA, lambda_=LAMBDA)
        yield f"GAE {n_envs}×{horizon}", answer, gae_arms(n_envs, horizon)
        answer = reference.vtrace(log_ratios, **arrays, gamma=GAMMA)
        yield f"V-trace {n_envs}×{horizon}", answer, vtrace_arms(n_envs, horizon)
    rng = np.random.default_rng(0)
    p, q = (np.log(rng.dirichlet(np.ones(2048) * 5.0, 32)).astype(np.float32) for _ in range(2))
    for estimator in ("exact", "k3"):
        answer = reference.token_kl(p, q, estimator=estimator)
        yield f"token KL 32×2048 {estimator}", answer, kl_arms(estimator)
    rewards = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
    yield "group advantages 64×8", reference.group_advantages(rewards), groups_arms()


def run_job(name: str, answer: Any, arms: Any, rounds: int, threads: int) -> Comparison:
    """Check every arm's answer, then time all of them."""
    ready: list[Arm] = []
    for arm, run, convert in arms:
        result = convert(run())
        for got, want in zip(*(x if isinstance(x, tuple) else (x,) for x in (result, answer)), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3, err_msg=f"{name}: {arm}")
        prepare = None
        if arm == "torch":
            import torch

            # A loop over steps is all small tensors, which a second thread only slows down (by five times).
            for n in range(1, (threads if "KL" in name else 1) + 1):
                prepare = lambda n=n: torch.set_num_threads(n)  # noqa: E731
                ready.append(Arm(f"torch, {n} thread{'s' * (n > 1)}", run, prepare))
            continue
        ready.append(Arm(arm, run, prepare))
    return compare(name, ready, rounds=rounds, warmups=3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=2, help="torch is tried with 1 … this many")
    parser.add_argument("--only", default="", help="run the jobs whose name contains this")
    parser.add_argument("--dry", action="store_true", help="print, write no result")
    options = parser.parse_args()
    comparisons = []
    for name, answer, arms in jobs():
        if options.only in name:
            comparisons.append(run_job(name, answer, arms, options.rounds, options.threads))
            print(timing_table(comparisons[-1:], OURS), end="\n\n", flush=True)
    missing = [name for name in ("rlox", "torch", "jax") if not installed(name)]
    note = (
        "Median over rounds; in brackets how many times as long as mileage in the same rounds. "
        "Sizes of rollouts are environments × steps."
    )
    tables = [note, timing_table(comparisons, OURS)]
    if missing:
        tables.append(f"Not installed: {', '.join(missing)}.")
    report = Report("kernels", "Array kernels", tables, [each.record() for each in comparisons])
    if not options.dry:
        print(*report.write(), sep="\n")


if __name__ == "__main__":
    main()
