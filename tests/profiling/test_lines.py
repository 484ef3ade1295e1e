"""Loops of Python in a user's network are found wherever its forward pass goes through them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extras import TORCH
from mileage.profiling.lines import Seen

pytestmark = TORCH


def looked_at(rounds: Callable[[Any, Callable[[Any], Any]], Any]) -> Seen:
    """What is seen of one call of a network that goes through `rounds`, and of its gradient."""
    import torch
    from torch import nn

    seen = Seen()

    class Cell(nn.Module):
        def forward(self, x: Any) -> Any:
            seen.add(sys._getframe())
            return x * 2.0

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = Cell()

        def forward(self, x: Any) -> Any:
            return rounds(x, self.cell)

    x = torch.ones(4, requires_grad=True)
    x.register_hook(lambda _: seen.add(sys._getframe()))
    for _ in range(1):
        Net()(x).sum().backward()  # the training loop is none of the network's
    return seen


def by_features(x: Any, cell: Callable[[Any], Any]) -> Any:
    for i in range(4):
        x = cell(x) * x[i]
    return x


def by_samples(x: Any, cell: Callable[[Any], Any]) -> Any:
    import torch

    return torch.stack([cell(each) for each in x])


def layers(x: Any, cell: Callable[[Any], Any]) -> Any:
    for layer in [cell] * 4:
        x = layer(x)
    return x


@pytest.mark.parametrize("rounds", [by_features, by_samples])
def test_a_loop_is_found_in_helpers_comprehensions_and_around_cells(rounds: Callable[..., Any]) -> None:
    seen = looked_at(rounds)
    ((code, line),) = seen.loops
    assert Path(code.co_filename).name == "test_lines.py"
    assert rounds.__code__.co_firstlineno < line <= rounds.__code__.co_firstlineno + 4
    assert (seen.samples, seen.forward, seen.gradient, seen.loops[code, line]) == (5, 4, 1, 4)
    # All of the forward pass is the loop, so all of the gradient is.
    assert seen.share(4) == pytest.approx(1.0)


def test_layers_one_after_the_other_are_no_loop() -> None:
    seen = looked_at(layers)
    assert (seen.forward, seen.loops) == (4, {})
