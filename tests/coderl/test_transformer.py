from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

from mileage.coderl.grpo import Transformer, TransformerConfig
from mileage.errors import UsageError


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig(vocabulary=9, context=16, width=16, layers=2, heads=2))


def test_a_token_does_not_see_what_comes_after_it(model: Transformer) -> None:
    tokens = torch.tensor([[1, 2, 3, 4]])
    changed = torch.tensor([[1, 2, 3, 8]])
    torch.testing.assert_close(model(tokens)[:, :3], model(changed)[:, :3])
    assert not torch.allclose(model(tokens)[:, 3], model(changed)[:, 3])


def test_sequences_in_one_row_do_not_see_each_other(model: Transformer) -> None:
    first, second = [1, 2, 3], [4, 5]
    row = torch.tensor([[*first, *second]])
    packed = model(row, torch.tensor([[0, 1, 2, 0, 1]]), torch.tensor([[0, 0, 0, 1, 1]]))
    torch.testing.assert_close(packed[:, :3], model(torch.tensor([first])), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(packed[:, 3:], model(torch.tensor([second])), atol=1e-5, rtol=1e-5)


def test_it_learns_to_copy_the_token_before_last(model: Transformer) -> None:
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(250):
        tokens = torch.randint(0, 9, (32, 2), generator=generator).repeat(1, 4)
        logits = model(tokens)[:, 1:-1]
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 9), tokens[:, 2:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tokens = torch.randint(0, 9, (64, 2), generator=generator).repeat(1, 4)
    assert (model(tokens)[:, 1:-1].argmax(-1) == tokens[:, 2:]).float().mean() > 0.95


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(UsageError, match="heads 3"):
        TransformerConfig(vocabulary=4, context=4, width=16, heads=3)
