"""Warm-snapshot pool against cold builds: samples per hour on the same cores, verdicts one by one.

    python benchmarks/coderl_pool.py PROJECT --output docs/reports/rl-bench-pool.md [--lock FILE]

The corpus is made here, from a seed: mutations of the project's own sources, half of which should compile, and a few
diffs that do not apply. Both pools have the same workers, jobs and limits. They take turns, a few candidates at a
time, each with the machine to itself (`--lock` is held for one turn, so that other measurements can be made between).
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import fcntl
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from mileage.coderl import BuildReward, PatchSample, RewardConfig, RewardResult, detect
from mileage.coderl.projects.edits import source_files

CANDIDATES = 40
TURN = 4
# Mutations that keep Rust well-typed as a rule, and mutations that break it as a rule. The compiler has the last word.
BENIGN = (
    (re.compile(r" == (?=\d)"), " != "),
    (re.compile(r" < (?=\w+\.len\(\))"), " <= "),
    (re.compile(r"\btrue\b(?=[;,)])"), "false"),
    (re.compile(r"\+ 1\b"), "+ 2"),
    (re.compile(r"\bif (?=self\.\w+ \{)"), "if !"),
    (re.compile(r"^(?=    /// )", re.MULTILINE), "    /// Reviewed.\n"),
)
BREAKING = (
    (re.compile(r"\blet mut (?=\w+ = )"), "let mut mut "),
    (re.compile(r"\) -> bool \{"), ") -> String {"),
    (re.compile(r"\bself\.(?=\w+\.len\(\))"), "this."),
    (re.compile(r"^use .*;\n", re.MULTILINE), ""),
    (re.compile(r"\breturn (?=\w+;)"), "return &&"),
    (re.compile(r"\bOk\((?=\w+\))"), "Okay("),
)


def in_comment(text: str, at: int) -> bool:
    return text[text.rfind("\n", 0, at) + 1 : at].strip().startswith("//")


def mutate(rng: random.Random, name: str, text: str, rules: tuple[tuple[re.Pattern[str], str], ...]) -> str | None:
    """Return a diff that applies one rule at one random place, outside tests and comments."""
    body = text.split("#[cfg(test)]")[0]
    pattern, put = rng.choice(rules)
    places = [match for match in pattern.finditer(body) if not in_comment(body, match.start())]
    if not places:
        return None
    match = rng.choice(places)
    new = text[: match.start()] + put + text[match.end() :]
    return "".join(difflib.unified_diff(text.splitlines(True), new.splitlines(True), f"a/{name}", f"b/{name}"))


def make_corpus(root: Path, seed: int = 0) -> list[PatchSample]:
    """Return candidates in random order: benign, breaking, and every twelfth against a file that reads otherwise."""
    rng = random.Random(seed)
    files = [file for file in source_files(root, (".rs",)) if "/src/" in file or "/core/" in file]
    samples: list[PatchSample] = []
    while len(samples) < CANDIDATES:
        name = rng.choice(files)
        number = len(samples)
        patch = mutate(rng, name, (root / name).read_text(), BREAKING if number % 2 else BENIGN)
        if patch and not any(sample.patch == patch for sample in samples):
            if number % 12 == 11:
                patch = patch.replace("\n ", "\n  ")
            samples.append(PatchSample(f"candidate-{number:02d}", patch=patch))
    rng.shuffle(samples)
    return samples


@contextlib.contextmanager
def alone(lock: Path | None) -> Iterator[None]:
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def take_turns(
    pools: dict[str, BuildReward],
    corpus: list[PatchSample],
    lock: Path | None,
    on_turn: Callable[[dict[str, list[RewardResult]], dict[str, float]], None],
) -> None:
    """Give each pool the corpus, a few candidates a turn; `on_turn` gets results and seconds by pool after each."""
    results: dict[str, list[RewardResult]] = {name: [] for name in pools}
    seconds = dict.fromkeys(pools, 0.0)
    for start in range(0, len(corpus), TURN):
        with alone(lock):
            for name, pool in pools.items():
                began = time.perf_counter()
                results[name] += pool.reward(corpus[start : start + TURN])
                seconds[name] += time.perf_counter() - began
        on_turn(results, seconds)
        done = {name: f"{seconds[name]:.0f} s" for name in pools}
        print(f"{min(start + TURN, len(corpus))}/{len(corpus)} {done}", flush=True)


def write_report(
    path: Path,
    name: str,
    pools: dict[str, BuildReward],
    results: dict[str, list[RewardResult]],
    seconds: dict[str, float],
) -> None:
    warm, cold = results["warm"], results["cold"]
    built = sum(result.verdict != "does-not-apply" for result in cold)
    same = sum(a.verdict is b.verdict for a, b in zip(warm, cold, strict=True))
    rates = {arm: built / seconds[arm] * 3600 for arm in pools}
    pool = pools["warm"]
    counts = {
        arm: ", ".join(f"{n} {v}" for v, n in sorted(Counter(r.verdict for r in results[arm]).items())) for arm in pools
    }
    lines = [
        f"# Build-reward pool on {name}: warm snapshot against cold builds",
        "",
        f"{len(cold)} candidates, {built} of them compiled (`{pool.config.steps[0]}`); {pool.workers} workers, "
        f"{pool.config.jobs} job each; "
        f"snapshots by {pool.method}; cache off; pools took turns of {TURN} candidates.",
        "",
        "| pool | verdicts | seconds | samples/hour |",
        "|---|---|---|---|",
        *[f"| {arm} | {counts[arm]} | {seconds[arm]:.1f} | {rates[arm]:.1f} |" for arm in pools],
        "",
        f"**{rates['warm'] / rates['cold']:.1f}× samples/hour; {same} of {len(cold)} verdicts identical.** "
        f"The snapshot itself took {pool.warm_seconds:.1f} s to build, once; with it counted, over this corpus alone, "
        f"the gain is {seconds['cold'] / (seconds['warm'] + pool.warm_seconds):.1f}×.",
        "",
        "| candidate | cold verdict | warm verdict | cold s | warm s | first diagnostic |",
        "|---|---|---|---|---|---|",
    ]
    for a, b in sorted(zip(cold, warm, strict=True), key=lambda pair: pair[0].id):
        note = a.diagnostic.replace("|", "\\|")[:90]
        lines.append(f"| {a.id} | {a.verdict} | {b.verdict} | {a.wall_seconds:.2f} | {b.wall_seconds:.2f} | {note} |")
    path.write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("project", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--lock", type=Path)
    parser.add_argument("--step", choices=("check", "build"), default="build", help="what a candidate must pass")
    parser.add_argument("--first", type=int, default=CANDIDATES, help="take only so many candidates of the corpus")
    options = parser.parse_args()
    project = detect(options.project)
    corpus = make_corpus(project.root)[: options.first]
    config = RewardConfig((options.step,), workers=2, jobs=1, timeout_seconds=600, use_cache=False)
    with contextlib.ExitStack() as stack:
        with alone(options.lock):
            warm = stack.enter_context(BuildReward(project, config))
        cold = stack.enter_context(BuildReward(project, replace(config, warm=False)))
        pools = {"cold": cold, "warm": warm}
        take_turns(
            pools,
            corpus,
            options.lock,
            lambda results, seconds: write_report(options.output, project.name, pools, results, seconds),
        )


if __name__ == "__main__":
    main()
