"""Measurements of planted bottlenecks, made again for the tests of the rules.

    PYTHONPATH=src:tests:tests/contracts:benchmarks python tests/profiling/record_planted.py ["tiny minibatches" …]

Makes the named runs of `benchmarks/profile_planted.py`, or all that are recorded, each in a process of its own, and
keeps of every one what the rules read. Replays get more time than by default: nothing is left out on a slow machine.
"one thread" needs a core that nobody else uses.
"""

from __future__ import annotations

import json
import subprocess
import sys

import profile_planted
from recorded_profiles import RECORDED, kept


def main(names: list[str]) -> None:
    """Record these, or all again."""
    known = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if len(names) != 1:
        for name in names or known:
            subprocess.run([sys.executable, __file__, name], check=True)
        return
    found, _ = profile_planted.profile_here(names[0], replay=60.0)
    known[names[0]] = kept(found)
    lines = (f"{json.dumps(name)}: {json.dumps(data)}" for name, data in sorted(known.items()))
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{names[0]}: {found.verdict}")


if __name__ == "__main__":
    main(sys.argv[1:])
