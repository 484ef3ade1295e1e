"""A race of programs that need a fraction of a second, for tests."""

from __future__ import annotations

from pathlib import Path

import mileage.external.exam.client

PROGRAM = """
import sys, time
sys.path.insert(0, {place!r})
from client import Exam

seed, pause, good_from = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
exam = Exam(framework="tiny", version="1.0", threads=1, packages={{"tiny": "1.0"}})

def act(rows):
    balanced = look >= good_from
    return [int(row[2] + 0.5 * row[3] + 0.1 * row[0] + 0.2 * row[1] > 0) if balanced else 0 for row in rows]

for look in range(1, 4):
    time.sleep(pause)
    if exam.look(100 * look + seed, act, loss=1.0 / look):
        break
"""

SPEC = """
[race]
name = "tiny"
env = "CartPole-v1"
target = "mean_return>=475"
episodes = 4
seeds = {seeds}
{race}

[budget]
{budget}

[[arm]]
name = "one"
tuned_by = "us"
command = ["{{python}}", "program.py", "{{seed}}", "{pause}", "2"]

[[arm]]
name = "two"
tuned_by = "defaults"
command = ["{{python}}", "program.py", "{{seed}}", "{pause}", "{second}"]
"""


def tiny_race(
    folder: Path, *, seeds: int = 3, race: str = "", budget: str = "", pause: float = 0.05, second: int = 1
) -> Path:
    """Write the race's file and its program into `folder`."""
    place = str(Path(mileage.external.exam.client.__file__).parent)
    (folder / "program.py").write_text(PROGRAM.format(place=place))
    path = folder / "tiny.toml"
    path.write_text(SPEC.format(seeds=seeds, race=race, budget=budget, pause=pause, second=second))
    return path
