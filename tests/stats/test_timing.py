from __future__ import annotations

import numpy as np
import pytest

from mileage._errors import UsageError
from mileage.stats import Instability, instabilities, modified_z_scores, outliers


def test_modified_z_scores_by_hand() -> None:
    # Median 3, deviations -2 -1 0 1 97, MAD 1, scale 1.4826.
    np.testing.assert_allclose(modified_z_scores([1, 2, 3, 4, 100]) * 1.4826, [-2, -1, 0, 1, 97])
    # MAD 0: the mean deviation (10 / 5 = 2) times 1.2533 is the scale.
    np.testing.assert_allclose(modified_z_scores([5, 5, 5, 5, 15]) * 1.2533, [0, 0, 0, 0, 5])
    assert (modified_z_scores([7, 7, 7]) == 0).all()


def test_outliers_are_marked() -> None:
    assert outliers([10, 11, 10, 12, 11, 50]).tolist() == [False] * 5 + [True]
    assert not outliers([1, 1, 100]).any()  # too few to say


def kinds(seconds: list[float]) -> set[Instability]:
    return {finding.kind for finding in instabilities(seconds)}


def test_steady_timings_have_no_findings() -> None:
    assert instabilities([1.00, 1.01, 0.99, 1.02, 0.98, 1.00, 1.01, 0.99]) == ()


def test_each_instability_is_found_with_its_evidence() -> None:
    steady = [1.00, 1.01, 0.99, 1.02, 0.98, 1.00, 1.01, 0.99]
    assert kinds([3.0, *steady]) == {Instability.SLOW_START}
    assert instabilities([3.0, *steady])[0].evidence == "the first run took 3 s, the median is 1 s"
    assert kinds([*steady, 3.0]) == {Instability.OUTLIERS}
    assert kinds([1.0 + 0.005 * i for i in range(12)]) == {Instability.DRIFT}
    assert "slower" in instabilities([1.0 + 0.005 * i for i in range(12)])[0].evidence
    assert "faster" in instabilities([2.0 - 0.005 * i for i in range(12)])[0].evidence
    assert kinds([1.0, 1.5, 0.7, 1.3, 0.8, 1.2, 0.9, 1.4]) == {Instability.WIDE_SPREAD}


def test_every_instability_names_what_to_try() -> None:
    assert all(kind.remedy for kind in Instability)
    assert "warm-up" in Instability.SLOW_START.remedy


def test_no_timings_are_refused() -> None:
    with pytest.raises(UsageError, match="seconds must be"):
        instabilities([])
