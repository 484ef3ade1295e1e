"""Array kernels against rlox, NumPy, torch and jitted JAX, in alternation, on the same numbers.

    PYTHONPATH=src python benchmarks/kernels.py --peer-python peers/bin/python

The cases, the other libraries' arms and the harness are those of `mileage bench`; the peers run in a process of their
own, each in the fastest of its ways, on inputs in the layout and type it likes best. All answers are checked before
anything is timed: ours against the plain reference here, the peers' against NumPy's.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from _harness import Report, timing_table
from mileage.kernels import reference
from mileage.profiling.bench import cases as inputs
from mileage.profiling.bench import peers as clone
from mileage.profiling.bench import suite as bench
from mileage.profiling.bench.cases import GAMMA, LAMBDA, Case, chosen
from mileage.system import usable_cores

PRIMITIVES = ("gae", "vtrace", "nstep", "token-kl", "groups")
TOLERANCE = 2e-4


def reference_answer(case: Case) -> Any:
    """The plain reference's answer to a case."""
    params = case.params
    if case.primitive == "token-kl":
        return reference.token_kl(*inputs.log_probs(params["rows"], params["length"]), estimator=params["estimator"])
    if case.primitive == "groups":
        return reference.group_advantages(inputs.rewards(params["groups"], params["size"]))
    rollout = inputs.rollout(params["n_envs"], params["horizon"])
    log_ratios = rollout.pop("log_ratios")
    if case.primitive == "vtrace":
        return reference.vtrace(log_ratios, **rollout, gamma=GAMMA)
    if case.primitive == "nstep":
        return reference.nstep_returns(**rollout, n=params["n"], gamma=GAMMA)
    return reference.gae(**rollout, gamma=GAMMA, lambda_=LAMBDA)


def check(case: Case) -> None:
    """Stop if our answer is not the reference's."""
    way = case.own(threads=1)
    assert way.answer is not None
    pairs = zip(
        *(x if isinstance(x, tuple) else (x,) for x in (way.answer(way.run()), reference_answer(case))), strict=True
    )
    for got, want in pairs:
        np.testing.assert_allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE, err_msg=case.title)


def shown(done: int, total: int, title: str) -> None:
    print(f"[{done + 1}/{total}] {title}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--peer-python", type=Path, action="append", default=[], help="a Python that has the peers")
    parser.add_argument("--only", choices=PRIMITIVES, action="append", help="run these primitives alone")
    parser.add_argument("--dry", action="store_true", help="print, write no result")
    options = parser.parse_args()
    cases = chosen(options.only or PRIMITIVES)
    for case in cases:
        check(case)
    settings = bench.BenchOptions(options.rounds, None)
    with clone.opened(clone.find(), options.peer_python, usable_cores()) as others:
        report = bench.run(cases, settings, others=others, on_progress=shown)
    comparisons = [result.comparison for result in report.results]
    note = (
        "Median over rounds; in brackets how many times as long as mileage in the same rounds. "
        "Sizes of rollouts are environments × steps. Every library in its fastest way: "
        + "; ".join(
            f"{each.job}: {', '.join(m.arm for m in each.measurements[1:] if ',' in m.arm)}" for each in comparisons
        )
        + "."
    )
    peers = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    warnings = [f"{each.evidence}: {each}." for each in report.conditions]
    tables = [note, timing_table(comparisons, bench.OURS), f"Peers: {peers}.", *warnings]
    print(tables[1])
    if not options.dry:
        print(*Report("kernels", "Array kernels", tables, [each.record() for each in comparisons]).write(), sep="\n")


if __name__ == "__main__":
    main()
