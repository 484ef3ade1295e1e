"""The public surface of `mileage.kernels`."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import mileage.kernels
from mileage.kernels import reference


def test_everything_listed_is_there_and_documented() -> None:
    assert mileage.kernels.__all__ == sorted(mileage.kernels.__all__)
    assert dir(mileage.kernels) == mileage.kernels.__all__
    for name in mileage.kernels.__all__:
        assert inspect.getdoc(getattr(mileage.kernels, name)), name


def test_every_function_has_a_plain_version_with_the_same_arguments() -> None:
    only_compiled = {"out", "check_finite"}
    for name in mileage.kernels.__all__:
        if name == "RunningMoments":
            continue
        compiled = inspect.signature(getattr(mileage.kernels, name)).parameters
        plain = inspect.signature(getattr(reference, name)).parameters
        assert [each for each in compiled if each not in only_compiled] == list(plain)
        assert all(compiled[each].default == plain[each].default for each in plain)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'gea'"):
        _ = mileage.kernels.gea


def test_import_does_not_load_numba() -> None:
    code = "import sys, mileage.kernels; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
