from __future__ import annotations

import numpy as np
import pytest

from mileage.errors import UsageError
from mileage.measure import modified_z_scores, outliers, spread, trend


def test_modified_z_scores_by_hand() -> None:
    # Median 3, deviations -2 -1 0 1 97, MAD 1, scale 1.4826.
    np.testing.assert_allclose(modified_z_scores([1, 2, 3, 4, 100]) * 1.4826, [-2, -1, 0, 1, 97])
    # MAD 0: the mean deviation (10 / 5 = 2) times 1.2533 is the scale.
    np.testing.assert_allclose(modified_z_scores([5, 5, 5, 5, 15]) * 1.2533, [0, 0, 0, 0, 5])
    assert (modified_z_scores([7, 7, 7]) == 0).all()


def test_outliers_are_marked() -> None:
    assert outliers([10, 11, 10, 12, 11, 50]).tolist() == [False] * 5 + [True]
    assert not outliers([1, 1, 100]).any()  # too few to say


def test_a_trend_is_kendalls() -> None:
    # All 28 pairs of 8 rising values agree: tau 1, and of the 8! orders two are as extreme, p = 2 / 40320.
    direction, p = trend([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    assert direction == pytest.approx(1.0)
    assert p == pytest.approx(2 / 40320)
    assert trend([1.0, 2.0, 3.0]) == (0.0, 1.0)  # too few to say
    assert trend([2.0] * 9) == (0.0, 1.0)


def test_a_spread_is_a_share() -> None:
    # Deviations -1 0 1 of 4: a standard deviation of 1, a quarter of 4.
    assert spread([3.0, 4.0, 5.0], 4.0) == 0.25
    assert spread([3.0], 4.0) == 0.0


def test_no_timings_are_refused() -> None:
    with pytest.raises(UsageError, match="values must be"):
        outliers([])
