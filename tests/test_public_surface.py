"""What `import mileage` gives, and what it costs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

import mileage


def test_everything_listed_is_there_and_nothing_else() -> None:
    assert dir(mileage) == sorted(mileage.__all__)
    assert set(mileage._homes()) | {"__version__"} == set(mileage.__all__)
    for name in mileage.__all__:
        assert getattr(mileage, name) is not None


@pytest.mark.parametrize("name", [name for name in mileage.__all__ if name != "__version__"])
def test_everything_public_is_documented(name: str) -> None:
    assert inspect.getdoc(getattr(mileage, name))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'mileage' has no attribute 'PPQ'"):
        _ = mileage.PPQ


def run(code: str) -> Any:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_import_loads_nothing_heavy() -> None:
    code = "import sys, mileage; print(*(set(sys.modules) & {'numba', 'numpy', 'torch', 'gymnasium', 'scipy', 'rich'}))"
    assert run(code) == []


def test_making_and_asking_an_agent_needs_neither_torch_nor_gymnasium() -> None:
    code = (
        "import sys, mileage; agent = mileage.PPO('CartPole-v1'); agent.predict([0.0] * 4); "
        "print(*(set(sys.modules) & {'torch', 'gymnasium'}))"
    )
    assert run(code) == []
