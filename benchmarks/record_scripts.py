"""`mileage record` on programs that know nothing of it: right times, right ends, nothing left running.

    python benchmarks/record_scripts.py --cleanrl ppo.py --python VENV/bin/python

Five programs: CleanRL's ppo.py, a script of Stable-Baselines3, a JAX script, a shell script, and one that forks, leaves
its session and goes on. Each runs to its end, and is then interrupted by Ctrl-C; what is recorded is held against a
clock around the command and against /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from adapters.drivers import complete

SB3 = "from stable_baselines3 import PPO\nPPO('MlpPolicy', 'CartPole-v1', n_steps=256, device='cpu').learn({steps})\n"
JAX = """
import jax, jax.numpy as jnp, time
step = jax.jit(lambda x: jnp.tanh(x @ x))
x, until = jnp.eye(64), time.monotonic() + {seconds}
while time.monotonic() < until:
    x = step(x).block_until_ready()
"""
SHELL = "#!/bin/sh\nfor i in 1 2 3; do sleep $(({seconds})); echo METRIC loss=0.$i step=$i; done\n"
DAEMON = """
import os, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
time.sleep({seconds})
print("METRIC done=1 step=9", flush=True)
"""


def programs(place: Path, python: str, cleanrl: str | None, long: bool) -> dict[str, list[str]]:
    """The commands by name; `long` ones do not end before they are interrupted."""
    texts = {"sb3.py": SB3.format(steps=10**8 if long else 512), "jax_loop.py": JAX.format(seconds=3600 if long else 2),
             "loop.sh": SHELL.replace("{seconds}", "1200" if long else "1"),
             "daemon.py": DAEMON.format(seconds=3600 if long else 2)}  # fmt: skip
    for name, text in texts.items():
        (place / name).write_text(text)
    found = {"Stable-Baselines3": [python, "sb3.py"], "JAX": [sys.executable, "jax_loop.py"],
             "shell": ["sh", "loop.sh"], "daemon": [sys.executable, "daemon.py"]}  # fmt: skip
    if cleanrl is not None:
        steps = str(10**8 if long else 1024)
        found["CleanRL ppo.py"] = [python, str(Path(cleanrl).resolve()), "--total-timesteps", steps, "--no-cuda"]
    return found


def left(mark: str) -> int:
    """Processes in whose environment `mark` stands."""
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path("/proc", pid, "environ").read_bytes()
            zombie = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        count += mark.encode() in environment and not zombie and int(pid) != os.getpid()
    return count


def recorded(name: str, command: list[str], place: Path, interrupt_after: float | None) -> dict[str, Any]:
    """One program to its end, or to Ctrl-C."""
    db = place / f"{name.split()[0]}-{interrupt_after}.db"
    mark = f"RECORD_SCRIPTS_{os.getpid()}_{time.monotonic_ns()}"
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "mileage", "record", "--quiet", "--db", str(db), "--", *command], cwd=place,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | {mark: "1"},
    )  # fmt: skip
    if interrupt_after is not None:
        time.sleep(interrupt_after)
        process.send_signal(signal.SIGINT)
    code = process.wait()
    took = time.perf_counter() - began
    (run,) = complete(db)
    return {"program": name, "interrupted": interrupt_after is not None, "exit_code": code, "state": str(run.state),
            "reason": run.end.reason, "run_seconds": run.wall_seconds, "command_seconds": took,
            "figures": sum(row.claimed is not None for row in run.checkpoints), "left_running": left(mark)}  # fmt: skip


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cleanrl", help="CleanRL's ppo.py")
    parser.add_argument("--python", default=sys.executable, help="interpreter with Stable-Baselines3 and tyro")
    parser.add_argument("--interrupt-after", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "record_scripts.json")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for after in (None, options.interrupt_after):
            for name, command in programs(Path(directory), options.python, options.cleanrl, after is not None).items():
                rows.append(recorded(name, command, Path(directory), after))
                print(json.dumps(rows[-1]), flush=True)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]}
    result = {"command": " ".join(["python", "benchmarks/record_scripts.py"]), "machine": machine, "rows": rows}
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
