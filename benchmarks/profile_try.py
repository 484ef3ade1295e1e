"""Two badly configured runs that `mileage profile --try` has to make cheaper, through the command line.

PYTHONPATH=src python benchmarks/profile_try.py ppo
PYTHONPATH=src python benchmarks/profile_try.py sac

Each writes the command's JSON and the preset to benchmarks/results/profile_try, and its Markdown report with the
command on top to docs/reports.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRICE = "0.20"
MISTAKES = {
    # One environment, minibatches of 16 as in supervised learning, an evaluation after every update, no preset.
    "ppo": (
        "ppo Pendulum-v1 --preset none --set n_envs=1 --set n_steps=512 --set minibatch=16 --set epochs=10 "
        "--set learning_rate=3e-4 --set gamma=0.95 --eval-every 512 --steps 300000"
    ),
    # A tiny batch and a tiny learning rate "to be safe", an evaluation every 100 steps "to see the curve".
    "sac": (
        "sac Pendulum-v1 --preset none --set batch=32 --set learning_rate=1e-4 --eval-every 100 --steps 30000"
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=sorted(MISTAKES))
    parser.add_argument("--target", default="mean_return>=-200")
    parser.add_argument("--budget", default="180")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/profile_try")
    parser.add_argument("--reports", type=Path, default=ROOT / "docs/reports")
    options = parser.parse_args()
    name = f"{options.workload}-pendulum"
    report, preset = options.reports / f"profile-try-{name}.md", options.results / f"{name}.toml"
    options.results.mkdir(parents=True, exist_ok=True)
    words = MISTAKES[options.workload].split()
    shown = ["profile", *words, "--target", options.target, "--try", "--budget", options.budget, "--price", PRICE]
    with tempfile.TemporaryDirectory() as directory:
        files = ["--export", "md", "-o", str(report), "--preset-out", str(preset), "--db", f"{directory}/ledger.db"]
        command = [sys.executable, "-m", "mileage", *shown, "--json", *files]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    (options.results / f"{name}.json").write_text(json.dumps(found["tried"], indent=1) + "\n")
    spelled = " ".join(f'"{word}"' if ">" in word else word for word in shown)
    heading = f"# `profile --try` on {options.workload.upper()} Pendulum, badly configured\n\n"
    text = report.read_text().replace("# Profile:", "## Profile:", 1)
    report.write_text(f"{heading}Command: `mileage {spelled}`\n\n{text}")
    print(found["verdict"], found["tried"]["verdict"], f"{found['tried']['spent_seconds']:.0f} s", sep="\n")


if __name__ == "__main__":
    main()
