"""The figures of a published profile beside ours."""

from __future__ import annotations

import pytest

from mileage.profiling import profile_run
from published.rlox_profile import beside, section

ON = {"n_envs": 4, "n_steps": 32, "hidden": [16, 16], "preset": "none", "minibatch": 64}
OFF = {"capacity": 2000, "learning_starts": 100, "batch": 32, "hidden": [16, 16]}


@pytest.mark.parametrize(
    ("algorithm", "env", "options", "figures"),
    [
        (
            "ppo", "CartPole-v1", ON,
            ["2.66 s", "18,796", "1.479 s", "48.4 µs", "123 µs", "~129 at ~2 µs", "28.5 ms", "62.7 ms", "~15–25 %"],
        ),
        (
            "sac", "Pendulum-v1", OFF,
            ["94.42 s", "212", "60.6 µs", "4,790 µs", "2,070 µs", "2 (push and sample)", "98.6 %", "~4,860 µs",
             "~20–30 %"],
        ),
    ],
)  # fmt: skip
def test_published_figures_stand_beside_ours(
    algorithm: str, env: str, options: dict[str, object], figures: list[str]
) -> None:
    found = profile_run(algorithm, env, steps=400, episodes=2, effort=0.05, replay=120.0, **options)
    cells = [str(cell) for table in beside(found) for row in table.rows for cell in row]
    for figure in figures:
        assert any(figure in cell for cell in cells), figure
    assert "other hardware" in section(found)


def test_other_workloads_have_none() -> None:
    found = profile_run("dqn", "CartPole-v1", steps=400, episodes=2, effort=0.05, replay=120.0, **OFF)
    assert beside(found) == []
