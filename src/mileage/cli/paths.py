"""Where runs keep their files."""

from __future__ import annotations

import re
import time
from pathlib import Path

from mileage._errors import UsageError

BEST = "best.safetensors"


def run_directory(out: Path, algorithm: str, env: str, seed: int) -> Path:
    """A new directory for one run, made now, so that an unwritable place is known before training."""
    label = re.sub(r"[^A-Za-z0-9_.-]+", "_", Path(env).name if ".py" in env else env).strip("._") or "env"
    base = f"{algorithm}-{label}-{time.strftime('%Y%m%d-%H%M%S')}-s{seed}"
    for suffix in ("", *(f".{n}" for n in range(2, 1000))):
        path = out / f"{base}{suffix}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if not out.is_dir():
                raise UsageError(f"cannot write to {out}: it is not a directory") from None
            continue
        except OSError as error:
            raise UsageError(f"cannot write to {out}: {error.strerror or error}") from None
        return path
    raise UsageError(f"cannot find a free name in {out}")
