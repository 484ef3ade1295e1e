"""Where the code that drives other libraries is: in a clone of the repository, not in what is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from mileage._errors import UsageError
from mileage.bench.suite import Others

_NAME = "primitives"
# Of an editable install, whose package lies in src/mileage of the clone.
_BESIDE = Path(__file__).resolve().parents[3] / "benchmarks" / _NAME


def find(given: Path | None = None) -> Path:
    """The folder `benchmarks/primitives` of a clone: the one given, or the one beside this very source."""
    folder = _BESIDE if given is None else given
    if (folder / "__init__.py").is_file() and (folder / "worker.py").is_file():
        return folder
    if given is not None:
        raise UsageError(f"--peers-from {given} holds no peers: name the folder benchmarks/{_NAME} of a clone")
    raise UsageError(
        "the code that drives other libraries comes with a clone of the repository: "
        f"clone it and add --peers-from CLONE/benchmarks/{_NAME}"
    )


def known(folder: Path) -> Mapping[str, Sequence[str]]:
    """Names of the libraries that do a job, by primitive, installed or not."""
    peers = _package(folder).PEERS
    return {primitive: [peer.library for peer in others] for primitive, others in peers.items()}


@contextlib.contextmanager
def opened(folder: Path | None, pythons: Sequence[Path], threads: int) -> Iterator[list[Others]]:
    """The libraries of these interpreters, each in a process of its own that ends with the context."""
    with contextlib.ExitStack() as stack:
        found: list[Others] = []
        for python in pythons:
            assert folder is not None
            package = _package(folder)
            channel = package.ProcessChannel(python)
            stack.callback(channel.close)
            found.append(package.PeerLibraries(channel, threads))
        yield found


def _package(folder: Path) -> ModuleType:
    loaded = sys.modules.get(_NAME)
    if loaded is not None and loaded.__file__ == str(folder / "__init__.py"):
        return loaded
    places = [str(folder)]
    spec = importlib.util.spec_from_file_location(_NAME, folder / "__init__.py", submodule_search_locations=places)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module
    spec.loader.exec_module(module)
    return module
