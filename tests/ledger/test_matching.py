from __future__ import annotations

from typing import Any

import pytest
from sample_rows import make_run

from mileage.errors import UnknownNameError, UnmatchedError
from mileage.ledger.matching import RULES, check_matched
from mileage.ledger.panels import Panel
from mileage.ledger.rows import Run
from mileage.seeding import held_out_seeds


def test_equal_runs_match_whatever_else_differs() -> None:
    a = [make_run(seed=i, name="a", algorithm="ppo", price_usd_per_hour=1.0) for i in range(3)]
    b = [make_run(seed=i, name="b", algorithm="sac", price_usd_per_hour=2.0, machine_id="other") for i in range(3)]
    assert check_matched(a, b).label is None


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("panel_id", {"panel_id": "q"}),
        ("target", {"target": "mean_return>=400.0"}),
        ("success", {"success": None}),
        ("accounting_window", {"accounting_window": "training only"}),
        ("step_rule", {"step_rule": "frames/4"}),
        ("machine", {"machine_id": "n", "price_usd_per_hour": 0.0}),
    ],
)
def test_each_field_of_the_rules_refuses_and_shows_both_values(field: str, change: dict[str, Any]) -> None:
    a, b = make_run(), make_run(**change)
    with pytest.raises(UnmatchedError) as caught:
        check_matched([a], [b])
    lines = str(caught.value).splitlines()
    assert lines[0] == f"these runs may not be compared, because they differ in {field}:"
    assert lines[1].split() == ["field", "A", "B"]
    name = {"machine": "machine_id"}.get(field, field)
    shown = ["none" if value is None else value for value in (getattr(a, name), getattr(b, name))]
    assert lines[2].split("  ")[0] == field
    assert all(value in lines[2] for value in shown)
    assert f"--allow-unmatched {field}" in lines[-1]
    assert check_matched([a], [b], allow=[field]).label == f"UNMATCHED: {field}"


def test_all_differing_fields_are_named_at_once() -> None:
    with pytest.raises(UnmatchedError, match="differ in panel_id, target:"):
        check_matched([make_run()], [make_run(panel_id="q", target=None)])
    label = check_matched([make_run()], [make_run(panel_id="q", target=None)], allow=["panel_id", "target"]).label
    assert label == "UNMATCHED: panel_id, target"


def test_runs_of_one_side_must_agree_among_themselves() -> None:
    with pytest.raises(UnmatchedError, match="panel_id"):
        check_matched([make_run(), make_run(panel_id="q")], [make_run()])


def test_other_hardware_is_fine_only_where_every_run_has_a_price() -> None:
    a, b = make_run(machine_id="m"), make_run(machine_id="n")
    assert check_matched([a], [b]).label is None
    with pytest.raises(UnmatchedError, match="machine"):
        check_matched([a], [b, make_run(machine_id="n", price_usd_per_hour=0.0)])


def test_runs_without_any_panel_are_not_known_to_be_equal() -> None:
    with pytest.raises(UnmatchedError, match="panel_id"):
        check_matched([make_run(panel_id=None)], [make_run(panel_id=None)])


def test_hostile_values_are_shown_without_their_teeth() -> None:
    with pytest.raises(UnmatchedError) as caught:
        check_matched([make_run()], [make_run(step_rule="\x1b[31m" + "x" * 5000)])
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_only_fields_of_the_rules_can_be_allowed() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'panel_id'"):
        check_matched([make_run()], [make_run()], allow=["panel"])
    assert set(RULES) == {"panel_id", "target", "success", "accounting_window", "step_rule", "machine"}


def examined_by(**changes: Any) -> Run:
    panel = Panel(**{"env_id": "CartPole-v1", "seeds": held_out_seeds(5), **changes})
    return make_run(panel=panel.to_json(), panel_id=panel.panel_id, success=panel.success)


def test_a_refusal_says_what_is_different_about_the_panels() -> None:
    with pytest.raises(UnmatchedError) as caught:
        check_matched([examined_by()], [examined_by(seeds=held_out_seeds(7), max_episode_steps=200)])
    lines = str(caught.value).splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["field", "panel.max_episode_steps", "panel.seeds", "panel_id"]
    assert "5 seeds from" in lines[3]
    assert "7 seeds from" in lines[3]
    assert lines[2].split() == ["panel.max_episode_steps", "none", "200"]
    assert lines[4].split()[1] == examined_by().panel_id[:8]  # what people can read comes first


def test_a_refusal_names_every_field_to_allow() -> None:
    with pytest.raises(UnmatchedError) as caught:
        check_matched([examined_by()], [examined_by(max_episode_steps=200)._replace(target="mean_return>=1.0")])
    said = str(caught.value).splitlines()[-1]
    assert said == "match them, or say --allow-unmatched panel_id --allow-unmatched target and accept the label"


def test_a_refusal_says_what_is_different_about_the_machines() -> None:
    free = {"price_usd_per_hour": 0.0}
    a = make_run(machine='{"cpu":"old","cores":2}', machine_id="m", **free)
    b = make_run(machine='{"cpu":"new","cores":2}', machine_id="n", **free)
    with pytest.raises(UnmatchedError, match=r"machine.cpu\s+old\s+new"):
        check_matched([a], [b])


def test_a_loop_that_does_not_know_the_environments_version_is_taken_at_its_word_and_it_is_said() -> None:
    loop, trained, other = examined_by(), examined_by(env_version="abc"), examined_by(env_version="def")
    found = check_matched([loop], [trained])
    assert found.label is None
    assert found.notes == ("the panel of A does not state env_version: that it is the same is taken on trust",)
    assert check_matched([trained], [trained]).notes == ()
    with pytest.raises(UnmatchedError, match=r"panel.env_version\s+abc\s+def"):
        check_matched([trained], [other])
    with pytest.raises(UnmatchedError, match=r"panel\.env_version"):
        check_matched([loop, other], [trained])
