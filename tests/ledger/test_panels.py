from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mileage.errors import UsageError
from mileage.ledger.panels import Panel, parse_success
from mileage.seeding import HELD_OUT_START, check_training_seed

START = HELD_OUT_START


def test_panel_id_is_the_sha256_of_the_written_out_json() -> None:
    panel = Panel(env_id="CartPole-v1", seeds=(START, START + 1), env_kwargs={"b": 1, "a": [2.5]})
    text = (
        '{"aggregate":"mean_return","deterministic":true,"env_id":"CartPole-v1","env_kwargs":{"a":[2.5],"b":1},'
        '"env_version":"","max_episode_steps":null,"perturbations":[],"seeds":[2147483648,2147483649],"success":null}'
    )
    assert panel.to_json() == text
    assert panel.panel_id == hashlib.sha256(text.encode()).hexdigest()


def test_default_panel_has_a_hundred_seeds_no_training_run_can_use() -> None:
    panel = Panel.default("CartPole-v1")
    assert len(set(panel.seeds)) == 100
    for seed in panel.seeds:
        with pytest.raises(UsageError, match="reserved for held-out"):
            check_training_seed(seed)


def test_order_of_kwargs_does_not_change_the_exam_and_order_of_seeds_does() -> None:
    first = Panel("e", (START, START + 1), {"x": 1, "y": 2})
    assert first == Panel("e", (START, START + 1), {"y": 2, "x": 1})
    assert first.panel_id == Panel("e", (START, START + 1), {"y": 2, "x": 1}).panel_id
    assert first.panel_id != Panel("e", (START + 1, START), {"x": 1, "y": 2}).panel_id


@pytest.mark.parametrize(
    "change",
    [
        {"env_id": "other"},
        {"env_kwargs": {"g": 9.8}},
        {"env_version": "2"},
        {"perturbations": ("wind",)},
        {"max_episode_steps": 200},
        {"deterministic": False},
        {"success": "return>=475"},
        {"aggregate": "success_rate"},
        {"seeds": (START + 7,)},
    ],
)
def test_every_field_is_part_of_the_exam(change: dict[str, object]) -> None:
    base = {"env_id": "e", "seeds": (START,)}
    assert Panel(**base).panel_id != Panel(**(base | change)).panel_id  # type: ignore[arg-type]


@given(
    n=st.integers(1, 20),
    panel_seed=st.integers(0, 2**32),
    kwargs=st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=5), st.booleans())),
)
def test_json_round_trip(n: int, panel_seed: int, kwargs: dict[str, object]) -> None:
    panel = Panel.default("e", n, panel_seed=panel_seed, env_kwargs=kwargs)
    again = Panel.from_json(panel.to_json())
    assert again == panel
    assert hash(again) == hash(panel)
    assert again.panel_id == panel.panel_id


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"env_id": ""}, "env_id"),
        ({"seeds": ()}, "at least one episode"),
        ({"seeds": (START, START)}, "must differ"),
        ({"seeds": (12,)}, "panel seed 12 is one that training could use"),
        ({"seeds": (2**32,)}, "panel seed 4294967296"),
        ({"max_episode_steps": 0}, "max_episode_steps must be at least 1"),
        ({"env_kwargs": {"f": print}}, "plain JSON"),
        ({"env_kwargs": {"f": float("nan")}}, "plain JSON"),
        ({"success": "lucky"}, "not a success definition"),
        ({"aggregate": "max"}, "aggregate 'max' is not known"),
    ],
)
def test_refusals_name_the_argument(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Panel(**({"env_id": "e", "seeds": (START,)} | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "[]", '{"env_id":"e"}', '{"env_id":"e","seeds":[1],"x":1}', "[" * 100_000])
def test_from_json_refuses_what_is_not_a_panel(text: str) -> None:
    with pytest.raises(UsageError, match="panel"):
        Panel.from_json(text)


def test_success_rules_judge_episodes_by_hand() -> None:
    returns, lengths = [474.0, 475.0, 500.0], [10, 500, 500]
    terminated, truncated, reported = [True, False, False], [False, True, True], [False, False, True]

    def judge(rule: str | None) -> list[bool] | None:
        judged = Panel("e", (START,), success=rule).successes(returns, lengths, terminated, truncated, reported)
        return None if judged is None else np.asarray(judged).tolist()

    assert judge(None) is None
    assert judge("return >= 475") == [False, True, True]
    assert judge("length>=500") == [False, True, True]
    assert judge("terminated") == [True, False, False]
    assert judge("truncated") == [False, True, True]
    assert judge("info:is_success") == [False, False, True]
    with pytest.raises(UsageError, match="is_success"):
        Panel("e", (START,), success="info:is_success").successes(returns, lengths, terminated, truncated)


def test_spellings_of_one_success_rule_are_one_exam() -> None:
    assert parse_success(" return  >=  475 ") == parse_success("return>=475.0") == "return>=475.0"
    assert json.loads(Panel("e", (START,), success="return>=475").to_json())["success"] == "return>=475.0"
