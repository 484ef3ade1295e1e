"""The exception tree."""

from __future__ import annotations

import inspect

import pytest

from mileage import _errors
from mileage._errors import MileageError, MissingExtraError, UnknownNameError, UsageError, looked_up

CLASSES = [item for _, item in inspect.getmembers(_errors, inspect.isclass) if item.__module__ == _errors.__name__]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_a_mileage_error_in_the_drawn_tree(kind: type) -> None:
    assert issubclass(kind, MileageError)
    assert kind.__name__ in (_errors.__doc__ or "")
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


def test_a_missing_extra_says_what_to_install() -> None:
    assert (
        str(MissingExtraError("torch policies", "torch"))
        == "torch policies needs an extra: pip install 'mileage[torch]'"
    )
