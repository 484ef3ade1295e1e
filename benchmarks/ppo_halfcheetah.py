"""PPO on HalfCheetah-v5 against Stable-Baselines3: the same settings, network and kind of normalisation.

Two questions, asked apart because they need different conditions.

*speed*: how many steps per second does training do? Whole processes in alternation on a machine that does nothing else;
the first rollout and update of each are not counted. Stable-Baselines3 runs with its environments in one process and
one or all threads for torch, and with a process per environment; each round counts the fastest.

*learn*: what does the policy return after 1,000,000 steps? Every run sits the same held-out exam of 20 episodes and
records itself in a ledger, ours through `mileage`, the other through the few lines that any loop would use. Run them in
alternation on a machine that does nothing else, or their seconds mean nothing.

    PYTHONPATH=src python benchmarks/ppo_halfcheetah.py learn --seed 0 --db halfcheetah.db
    PYTHONPATH=src peers/bin/python benchmarks/peers/ppo_halfcheetah_sb3.py learn --seed 0 --db halfcheetah.db
    PYTHONPATH=src python benchmarks/ppo_halfcheetah.py speed --peer-python peers/bin/python --db halfcheetah.db
    mileage ledger compare ppo-halfcheetah sb3-halfcheetah --db halfcheetah.db
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from _harness import Report, markdown_table
from halfcheetah import ENV, EVAL_EVERY, PRICE, ROLLOUT, SETTINGS, TARGET, TOTAL_STEPS, panel

HERE = Path(__file__).resolve().parent
OURS, PEER = "mileage", "Stable-Baselines3"
OUR_RUNS, PEER_RUNS = "ppo-halfcheetah", "sb3-halfcheetah"
TIMEOUT_SECONDS = 300.0


def settings(hidden: int) -> dict[str, Any]:
    return SETTINGS | {"hidden": (hidden, hidden)}


def arm(options: argparse.Namespace) -> dict[str, Any]:
    """Our arm of the speed comparison, in this process."""
    import mileage

    marks: list[float] = []
    with mileage.PPO(ENV, seed=options.seed, preset="none", **settings(options.hidden)) as agent:
        exam = agent.default_panel(episodes=1)
        agent.learn((options.rollouts + 2) * ROLLOUT, eval_every=10**9, panel=exam, callback=lambda _: mark(marks))
        parameters = int(agent.policy.params.size)
    # Callbacks come after an iteration; evaluation, which the other arm does not do, falls into the last one.
    seconds = marks[-2] - marks[0]
    return {"steps_per_second": (len(marks) - 2) * ROLLOUT / seconds, "seconds": seconds, "parameters": parameters}


def mark(marks: list[float]) -> None:
    marks.append(time.perf_counter())


def learn(options: argparse.Namespace) -> None:
    """Our learning run, recorded."""
    import mileage
    from mileage.ledger import Target
    from mileage.measure import PhaseClock

    chosen = settings(options.hidden)
    with mileage.PPO(ENV, seed=options.seed, preset="none", threads=options.threads, **chosen) as agent:
        run = agent.learn(
            options.steps,
            target=Target.parse(TARGET),
            panel=panel(),
            eval_every=EVAL_EVERY,
            stop_at_target=False,
            clock=PhaseClock(),
            ledger=options.db[0],
            name=OUR_RUNS,
            price_usd_per_hour=PRICE,
        )
    assert run.final is not None
    print(f"seed {options.seed}: {run.steps:,} steps, held-out mean return {run.final.mean_return:.0f}")


def run(command: list[str]) -> dict[str, Any]:
    """One process; what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr.strip()[-2000:]}")
    record: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return record


def speed_arms(options: argparse.Namespace) -> dict[str, list[str]]:
    """Command lines by name."""
    shared = ["--hidden", str(options.hidden), "--rollouts"]
    ours = [sys.executable, str(HERE / "ppo_halfcheetah.py"), "arm", *shared, str(4 * options.rollouts)]
    script = str(HERE / "peers" / "ppo_halfcheetah_sb3.py")
    peer = [options.peer_python, script, "speed", *shared, str(options.rollouts)]
    cores = len(os.sched_getaffinity(0))
    return {
        OURS: ours,
        f"{PEER}, 1 thread": [*peer, "--threads", "1"],
        f"{PEER}, {cores} threads": [*peer, "--threads", str(cores)],
        f"{PEER}, processes": [*peer, "--threads", "1", "--processes"],
    }


def speed_table(records: list[dict[str, Any]]) -> str:
    """Medians, and the median over rounds of the ratio within a round."""
    names = list(dict.fromkeys(record["arm"] for record in records))
    speeds = {
        name: [r["steps_per_second"] for r in sorted(records, key=lambda r: int(r["seed"])) if r["arm"] == name]
        for name in names
    }
    speeds[f"{PEER}, the fastest of each round"] = [
        max(found) for found in zip(*(speeds[name] for name in names if name != OURS), strict=True)
    ]
    rows = []
    for name, found in speeds.items():
        ratio = statistics.median(ours / theirs for ours, theirs in zip(speeds[OURS], found, strict=True))
        by_round = " ".join(f"{each:,.0f}" for each in found)
        rows.append([name, f"{statistics.median(found):,.0f}", f"{ratio:.2f}×", by_round])
    return markdown_table(["arm", "steps/s", f"{OURS} is faster by", "by round"], rows)


def evaluations(dbs: list[str]) -> list[dict[str, Any]]:
    """All held-out evaluations of the learning runs in some ledgers; every run sat the same exam."""
    from mileage import Ledger
    from mileage.ledger import queries
    from mileage.ledger.store import Store

    data = []
    for db in dbs:
        with Store(Ledger(db).url, create=False, recover=False) as store:
            for record in store.read(queries.records, None):
                rows = store.read(queries.checkpoints, record.run.run_id)
                points = [(row.step, row.mean_return) for row in rows if row.mean_return is not None]
                if record.run.name in (OUR_RUNS, PEER_RUNS) and points:
                    if record.run.panel_id != panel().panel_id:
                        raise SystemExit(f"run {record.run.run_id} sat another exam")
                    data.append({"name": record.run.name, "seed": record.run.seed, "evaluations": points})
    return data


def returns_table(data: list[dict[str, Any]]) -> str:
    """Each seed at the last step that both arms were examined at, and where each ended."""
    runs = {(each["name"], each["seed"]): dict(each["evaluations"]) for each in data}
    rows = []
    for seed in sorted({seed for _, seed in runs}):
        ours, theirs = runs.get((OUR_RUNS, seed)), runs.get((PEER_RUNS, seed))
        if ours is None or theirs is None:
            continue
        step = max(set(ours) & set(theirs))
        ends = [f"{found[max(found)]:,.0f} after {max(found):,}" for found in (ours, theirs)]
        rows.append([seed, f"{step:,}", f"{ours[step]:,.0f}", f"{theirs[step]:,.0f}", *ends])
    header = ["seed", "steps", OURS, PEER, f"{OURS} at its end", f"{PEER} at its end"]
    return markdown_table(header, rows)


def verdict(db: str) -> str:
    """What the ledger itself says of the two arms."""
    command = [sys.executable, "-m", "mileage", "ledger", "compare", OUR_RUNS, PEER_RUNS, "--db", db]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "120"})
    return "\n".join(line.rstrip() for line in done.stdout.rstrip().splitlines())


def compare(options: argparse.Namespace) -> None:
    """Alternate the arms; write the result, with the returns of the learning runs if there is a ledger of them."""
    arms = speed_arms(options)
    records = []
    for seed in range(options.rounds):
        names = list(arms)
        for name in (*names[seed % len(names) :], *names[: seed % len(names)]):
            records.append({"arm": name, "seed": seed} | run([*arms[name], "--seed", str(seed)]))
            print(f"round {seed}: {name}: {records[-1]['steps_per_second']:,.0f} steps/s", flush=True)
    if len({record["parameters"] for record in records}) != 1:
        raise SystemExit("the networks differ")
    write(options, records)


def write(
    options: argparse.Namespace,
    records: list[dict[str, Any]],
    command: str | None = None,
    when: dict[str, Any] | None = None,
) -> None:
    """Write the result; `when` is the machine of the speed comparison, if that was made earlier."""
    network = f"two {options.hidden} × {options.hidden} tanh networks, {records[0]['parameters']:,} parameters"
    shown = ", ".join(f"{name} {value}" for name, value in SETTINGS.items() if name != "hidden")
    tables = [f"Both arms: {shown}; {network}.", "## Steps per second", speed_table(records)]
    data: dict[str, Any] = {"speed": records}
    if when is not None:
        data["speed_machine"] = when
        tables.insert(2, f"Measured {when['time']}, load {when['load']}.")
    if options.db:
        data["learning"] = evaluations(options.db)
        tables += [
            "## Mean return over 20 held-out episodes, from the ledger",
            "Both arms at the last step at which both were examined.",
            returns_table(data["learning"]),
            f"`mileage ledger compare {OUR_RUNS} {PEER_RUNS}`, to {TARGET}:",
            *(f"```text\n{verdict(db)}\n```" for db in options.db),
        ]
    report = Report(options.name, "PPO on HalfCheetah-v5", tables, data)
    print("\n\n".join(tables), *report.write(command=command), sep="\n")


def add_returns(options: argparse.Namespace) -> None:
    """Join the learning runs of a ledger to a speed result that is there already."""
    from _harness import RESULTS

    found = json.loads((RESULTS / f"{options.name}.json").read_text())
    when = found["data"].get("speed_machine", found["machine"])
    write(options, found["data"]["speed"], found["command"], when)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("speed", "learn", "arm", "returns"))
    parser.add_argument("--peer-python", help="the Python that has Stable-Baselines3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rollouts", type=int, default=3, help="measured per process, after one that is not")
    parser.add_argument("--hidden", type=int, default=SETTINGS["hidden"][0], help="width of both hidden layers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=TOTAL_STEPS)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--db", action="append", help="ledger of the learning runs; may be given several times")
    parser.add_argument("--name", default="ppo_halfcheetah", help="name of the result files")
    options = parser.parse_args()
    if options.mode == "arm":
        print(json.dumps(arm(options)))
    else:
        {"speed": compare, "learn": learn, "returns": add_returns}[options.mode](options)


if __name__ == "__main__":
    main()
