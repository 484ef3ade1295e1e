"""What editors complete and mypy checks is what agents take."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Sequence

import pytest

from mileage.algorithms.registry import BUILT_IN, Algorithm
from mileage.training import signatures
from mileage.training.agent import Agent

WIDER = {"learning_rate": signatures.Scheduled, "clip": signatures.Scheduled, "hidden": Sequence[int]}


@pytest.mark.parametrize("algorithm", BUILT_IN, ids=lambda each: each.name)
def test_every_setting_is_named_with_its_type(algorithm: Algorithm) -> None:
    config = algorithm.learner().Config
    types = typing.get_type_hints(config)
    settings = {field.name: WIDER.get(field.name, types[field.name]) for field in dataclasses.fields(config)}
    named = typing.get_type_hints(vars(signatures)[f"{algorithm.class_name}Options"])
    taken = inspect.getfullargspec(Agent.__init__).kwonlyargs
    assert named.keys() == settings.keys() | {*taken, "verbose", "tensorboard_log"}
    assert {name: named[name] for name in settings} == settings
