"""Makes the library that hears how programs end (`witness.c`), with this machine's C compiler."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("witness.c")
_FLAGS = ("-shared", "-fPIC", "-O2", "-fvisibility=hidden", "-Wl,-z,initfirst")
NOT_HEARD = (
    "a program that leaves in the middle of its tests with exit code 0 is not noticed, unless its test runner reports "
    "each test: "
)


def make_witness(directory: Path) -> tuple[str, str]:
    """The path of the library, made in `directory`, or an empty one and the sentence that says why there is none."""
    library = directory / "witness.so"
    command = (os.environ.get("CC") or "cc", *_FLAGS, "-o", str(library), str(SOURCE), "-ldl")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{NOT_HEARD}{error}"
    if done.returncode != 0:
        return "", f"{NOT_HEARD}{(done.stderr.strip().splitlines() or ['the compiler failed'])[-1]}"
    return str(library), ""
