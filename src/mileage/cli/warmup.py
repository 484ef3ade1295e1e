"""`mileage warmup`: compile ahead of the first run."""

from __future__ import annotations

import shutil
from typing import Annotated

from typer import Argument, Option


def warmup(
    environments: Annotated[
        list[str] | None, Argument(help="Environments to compile; the built-in ones by default.")
    ] = None,
    algorithm: Annotated[str, Option(help="Algorithm to compile.")] = "ppo",
    clean: Annotated[bool, Option("--clean", help="Delete all compiled kernels first.")] = False,
) -> None:
    """Compile every kernel and environment now, so that the first run starts at once."""
    import time

    from mileage.algorithms.registry import find_algorithm
    from mileage.envs import native, registered
    from mileage.kernels.machine import precompile as ahead
    from mileage.kernels.machine.jit import cache_dir, cache_root

    if clean:
        shutil.rmtree(cache_root(), ignore_errors=True)
    start = time.perf_counter()
    names = find_algorithm(algorithm).learner().kernels(True)
    with ahead.loading(names):
        for name in environments or registered():
            spec = native(name)
            _ = spec.advance_address, spec.reset_address
            print(f"{name}: ready")
    print(f"kernels {', '.join(names)}: ready")
    print(f"{time.perf_counter() - start:.1f} s; kept in {cache_dir()}")
