"""What is said about a search: the verdict, the tables, the JSON, and a preset file that training takes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import mileage
from mileage.profiling.tuning import report
from mileage.profiling.tuning.changes import Fix
from mileage.profiling.tuning.runs import Setup
from mileage.profiling.tuning.tried import Tried, try_fixes
from scripted_runs import Scripted, plain_setup

MINIBATCH = Fix("minibatch", "larger", lambda setup, _: setup.but(minibatch=64), lambda *_: 0.3)
GAMMA = Fix("gamma", "another", lambda setup, _: setup.but(gamma=0.5))


def _script(setup: Setup, seed: int) -> tuple[float, float]:
    if setup.config["gamma"] == 0.5:
        return 4000.0, math.inf
    return (1000.0 if setup.config["minibatch"] == 16 else 5000.0), 5000 * (1.0 + 0.02 * math.sin(7.0 * seed))


@pytest.fixture(scope="module")
def tried() -> Tried:
    return try_fixes(
        plain_setup(), "mean_return>=0.0", Scripted(_script), fixes=[GAMMA, MINIBATCH], price_usd_per_hour=3.6, cores=2
    )


def test_verdict_first_then_costs_in_seconds_and_dollars(tried: Tried) -> None:
    lines = report.summary(tried)
    assert lines[0].startswith("VERIFIED: minibatch reaches mean_return>=0.0 5")
    assert "times cheaper (95 %:" in lines[0]
    # 5 s at $3.60 an hour are half a cent.
    assert "baseline: 5.0" in lines[1]
    assert "($0.005)" in lines[1]
    assert "minibatch: 1.0" in lines[2]
    assert "($0.001)" in lines[2]
    assert "minibatch 16 → 64" in lines[3]
    assert "more steps/s, but no less wall-clock to target: gamma" in lines[4]


def test_the_table_holds_the_estimate_against_the_measurement(tried: Tried) -> None:
    rows = {row[0]: dict(zip(report.COLUMNS, row, strict=True)) for row in report.fix_rows(tried)}
    assert rows["minibatch"]["estimated"] == "−30 %"
    assert rows["minibatch"]["measured"].startswith("−80 % [−")
    assert rows["minibatch"]["steps/s (steady)"] == "5,000 (5,000)"
    assert rows["gamma"]["estimated"] == "–"
    assert rows["gamma"]["verdict"] == "faster, not cheaper"
    assert rows["gamma"]["to target"].startswith("not in 6.25 s")
    assert rows["gamma"]["reached"] == "0 of 1"
    assert rows["baseline"]["verdict"] == ""


def test_markdown_lists_every_run_of_the_verification(tried: Tried) -> None:
    text = report.markdown(tried)
    runs = text.partition("### Verification, run by run")[2]
    assert runs.count("| reached |") == len(tried.verified)
    assert "| fix | changes | estimated | measured | to target | steps/s (steady) | reached | verdict |" in text
    assert "VERIFIED: minibatch" in text


def test_the_terminal_shows_the_same(tried: Tried, capsys: pytest.CaptureFixture[str]) -> None:
    report.show(tried)
    out = capsys.readouterr().out
    assert out.startswith("VERIFIED: minibatch")
    assert "faster, not cheaper" in out


def test_json_keeps_every_run(tried: Tried) -> None:
    data = json.loads(json.dumps(report.as_dict(tried)))
    assert data["verified"] is True
    assert data["verification"]["ratio"] == pytest.approx(5.0, rel=0.03)
    runs = [
        run
        for arm in (data["baseline"], *data["fixes"], *data["combinations"], *data["without_one_change"])
        for run in arm["runs"]
    ]
    assert len(runs) + len(data["verification_runs"]) + len(data["runs_cut_by_the_budget"]) == tried.runs
    assert data["best"]["setup"]["config"]["minibatch"] == 64
    assert data["fixes"][0]["estimated_gain"] == 0.3


def test_nothing_verified_says_why() -> None:
    def search(script: object, fixes: list[Fix], **rest: object) -> str:
        return report.verdict(try_fixes(plain_setup(), "t>=1", script, fixes=fixes, cores=2, **rest))  # type: ignore[arg-type]

    assert "no fix was cheaper" in search(Scripted(lambda *_: (1000.0, 5000.0)), [MINIBATCH])
    assert "no run reached t>=1" in search(Scripted(lambda *_: (1000.0, math.inf)), [MINIBATCH])
    assert "interrupted" in search(Scripted(_script, interrupt_at=6.0), [MINIBATCH])


def test_a_baseline_that_never_arrives_gets_a_lower_bound() -> None:
    script = Scripted(lambda setup, seed: (1000.0, math.inf if setup.config["minibatch"] == 16 else 900.0))
    found = try_fixes(plain_setup(), "t>=1", script, fixes=[MINIBATCH], cores=2)
    assert "at least" in report.verdict(found)
    assert "baseline: not reached" in report.summary(found)[1]


def test_the_preset_trains_what_was_verified(tmp_path: Path) -> None:
    setup = Setup.of("ppo", "CartPole-v1", preset="none", minibatch=16, threads=2)
    found = try_fixes(setup, "mean_return>=475", Scripted(_script), fixes=[MINIBATCH], cores=2)
    file = tmp_path / "best.toml"
    file.write_text(report.preset_text(found))
    assert found.best is not None
    agent = mileage.PPO("CartPole-v1", preset=str(file))
    assert vars(agent.config) == dict(found.best.setup.config)
    assert agent.config.minibatch == 64
    assert agent.threads == 2
    assert agent.plan_horizon(None) == found.best.setup.total_steps
    assert agent.run_defaults["eval_every"] == found.best.setup.eval_every
    # What is said to the agent counts for more than the file.
    assert mileage.PPO("CartPole-v1", preset=str(file), threads=1, minibatch=32).threads == 1
