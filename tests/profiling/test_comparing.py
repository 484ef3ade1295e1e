"""Two profiles beside each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mileage.errors import UsageError
from mileage.profiling.compare import compare_profiles


def profile(steps: int = 1000, learn: float = 2.0, each: float = 0.1, pieces: int = 6, **config: Any) -> dict[str, Any]:
    """A profile with six seconds of rollout, and some of learning whose entries alternate around `each`."""
    times = [each * (1.01 if number % 2 else 0.99) for number in range(pieces)]
    moments = [
        {"phases": {"learn": sum(times[:count])}, "entries": {"learn": count}, "wall_seconds": float(count)}
        for count in range(pieces + 1)
    ]
    phases = {"rollout": 6.0, "learn": learn}
    run = {"wall_seconds": 6.0 + learn, "phases": phases, "env_steps": steps, "over_time": moments, "peak_rss_gb": 0.5}
    work = {"algorithm": "ppo", "env": "E", "backend": "native", "threads": 2, "seed": 0, "config": config}
    found = [{"bottleneck": "learner_bound", "evidence": f"{learn:g} s in learn"}] if learn > 3.0 else []
    return {"workload": work | {"machine": {"cpu": "X"}}, "run": run, "findings": found}


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(name: str, content: Any) -> str:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write


def test_the_phase_that_takes_longer_is_named_per_step_with_what_its_entries_say(written: Any) -> None:
    a = written("a.json", profile(steps=1000, learn=2.0, each=0.1, minibatch=64))
    b = written("b.json", profile(steps=2000, learn=10.0, each=0.3, minibatch=8))
    found = compare_profiles(a, b)
    assert found.unit == "µs per step"
    assert found.totals == (8000.0, 8000.0)
    learn, rollout = sorted(found.parts, key=lambda each: each.part)
    assert (learn.a, learn.b, learn.of_a) == (2000.0, 5000.0, 0.375)
    assert (rollout.a, rollout.b) == (6000.0, 3000.0)
    assert learn.ratio is not None
    assert learn.ratio.low < 3.0 < learn.ratio.high < 3.1
    assert found.verdict.startswith(
        "A and B take the same, within 2% (8000 and 8000 µs per step); what differs most is"
    )
    assert found.settings == {"minibatch": (64, 8)}
    (findings,) = [table for table in found.tables() if table.key == "findings"]
    assert findings.rows == (("learner_bound", "–", "10 s in learn"),)


def test_what_chance_may_have_done_says_so(written: Any) -> None:
    a, b = written("a.json", profile(learn=2.0)), written("b.json", profile(learn=2.5))
    (learn,) = [each for each in compare_profiles(a, b).parts if each.part == "learn"]
    assert learn.chance.endswith("below the noise")
    few = written("c.json", profile(learn=2.5, pieces=2))
    (learn,) = [each for each in compare_profiles(a, few).parts if each.part == "learn"]
    assert learn.chance == "one run each"


def test_a_shared_machine_is_named(written: Any) -> None:
    shared = profile()
    shared["findings"] = [{"bottleneck": "shared_machine", "evidence": "others"}]
    found = compare_profiles(written("a.json", profile()), written("b.json", shared))
    assert found.verdict.endswith("Others used the machine during B: repeat it alone before believing this")


def test_programs_compare_by_layers_and_not_with_runs(written: Any) -> None:
    program = {"command": ["python", "x.py"], "wall_seconds": 2.0, "layers": {"env.step": 1.5, "other": 0.5}}
    slower = program | {"wall_seconds": 4.0, "layers": {"env.step": 3.5, "other": 0.5}}
    trouble = {"trouble": "env-bound", "file": "/x/x.py", "line": 3, "evidence": "slow"}
    a, b = written("a.json", program | {"findings": []}), written("b.json", slower | {"findings": [trouble]})
    found = compare_profiles(a, b)
    assert found.verdict == (
        "B takes 2 times as long as A (2 and 4 s); what differs most is env.step: 1.5 and 3.5, one run each"
    )
    assert dict(found.b.findings) == {"env-bound at x.py:3": "slow"}
    with pytest.raises(UsageError, match="nothing in common"):
        compare_profiles(a, written("c.json", profile()))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"run": 3}', '{"run": {"wall_seconds": NaN}, "workload": {}}'])
def test_what_is_no_profile_is_a_sentence(written: Any, content: str) -> None:
    with pytest.raises(UsageError, match="profile: make one with mileage profile --json"):
        compare_profiles(written("a.json", content), written("b.json", profile()))
