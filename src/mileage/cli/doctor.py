"""`mileage doctor`: is this machine fit, and what will run on it? `mileage warmup`: compile ahead."""

from __future__ import annotations

import importlib.util
import shutil
from typing import Annotated

import typer
from typer import Argument, Option

from mileage.cli.options import AsJson
from mileage.records import Record, strict_json

_EXTRAS = {"postgres": "psycopg", "parquet": "pyarrow", "gpu": "pynvml"}
"""Extras whose module has another name."""


def doctor(json_output: AsJson = False) -> None:
    """Check the machine: cores, BLAS, kernel cache, extras, isolation. Exits with 1 if something is wrong."""
    report = _examine()
    problems = report["problems"]
    if json_output:
        print(strict_json(report, indent=2))
    else:
        for name, value in report.items():
            if name != "problems":
                text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
                print(f"{name:>14}  {text}")
        for problem in problems:
            print(f"       problem  {problem}")
        print(f"{'verdict':>14}  {'something is wrong' if problems else 'all well'}")
    if problems:
        raise typer.Exit(1)


def _examine() -> Record:
    from mileage.algorithms.registry import find_algorithm
    from mileage.coderl.sandbox.containment import containment_here
    from mileage.kernels.machine import precompile as ahead
    from mileage.kernels.machine.blas import blas
    from mileage.kernels.machine.jit import cache_dir, cache_is_writable
    from mileage.measure import fingerprint
    from mileage.version import __version__

    machine = fingerprint().as_dict()
    missing = ahead.missing(find_algorithm("ppo").learner().kernels(True))
    extras = ("torch", "mujoco", "postgres", "parquet", "tensorboard", "gpu")
    problems = []
    if not cache_is_writable():
        problems.append(f"compiled kernels cannot be kept in {cache_dir()}: every process compiles anew")
    if blas().set_threads is None:
        problems.append("this BLAS cannot be told to use one thread: set OPENBLAS_NUM_THREADS=1 or MKL_NUM_THREADS=1")
    return {
        "mileage": __version__,
        "machine": {key: value for key, value in machine.items() if not isinstance(value, dict | list)},
        "blas": blas().source,
        "kernel cache": str(cache_dir()),
        "compiled": "all kernels" if not missing else f"missing: {', '.join(missing)} (run 'mileage warmup')",
        "extras": {name: "yes" if importlib.util.find_spec(_EXTRAS.get(name, name)) else "no" for name in extras},
        "code RL": containment_here(),
        "problems": problems,
    }


# --- `mileage warmup`: compile ahead of the first run ---
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
