"""The exception tree."""

from __future__ import annotations

import inspect
import json
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from mileage import errors
from mileage.errors import MileageError, MissingExtraError, UnknownNameError, UsageError, looked_up

CLASSES = [item for _, item in inspect.getmembers(errors, inspect.isclass) if item.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_a_mileage_error_in_the_drawn_tree(kind: type) -> None:
    assert issubclass(kind, MileageError)
    assert kind.__name__ in (errors.__doc__ or "")
    assert inspect.getdoc(kind)


def test_bad_arguments_are_value_errors_and_missing_extras_import_errors() -> None:
    assert issubclass(UsageError, ValueError)
    assert issubclass(UnknownNameError, ValueError)
    assert issubclass(MissingExtraError, ImportError)


def test_an_unknown_name_suggests_a_near_one_or_lists_all() -> None:
    known = ["CartPole-v1", "Pendulum-v1"]
    near = str(UnknownNameError("environment", "CartPol-v1", known))
    assert near == "unknown environment 'CartPol-v1': did you mean 'CartPole-v1'?"
    far = str(UnknownNameError("environment", "Chess", known))
    assert far == "unknown environment 'Chess': known: CartPole-v1, Pendulum-v1."


def test_what_is_looked_up_is_there_or_unknown() -> None:
    assert looked_up("shape", "square", {"circle": 0, "square": 4}) == 4
    with pytest.raises(UnknownNameError, match="unknown shape 'squre': did you mean 'square'"):
        looked_up("shape", "squre", {"circle": 0, "square": 4})


SOURCE = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'mileage[torch]'"),
        ({"url": f"file://{SOURCE}", "dir_info": {}}, f"{sys.executable} -m pip install '{SOURCE}[torch]'"),
        (
            {"url": f"file://{SOURCE}", "dir_info": {"editable": True}},
            f"{sys.executable} -m pip install --editable '{SOURCE}[torch]'",
        ),
        (
            {"url": "https://example.org/m.git", "vcs_info": {"vcs": "git"}},
            f"{sys.executable} -m pip install 'mileage[torch] @ git+https://example.org/m.git'",
        ),
        ({"url": "file:///nowhere/at/all", "dir_info": {}}, "pip install 'mileage[torch]'"),
    ],
)
def test_a_missing_extra_says_what_installs_it_here(
    origin: object, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(metadata, "distribution", lambda _: SimpleNamespace(read_text=lambda _: text))
    assert str(MissingExtraError("torch policies", "torch")) == f"torch policies needs an extra: {command}"
