"""Masked distributions in several parts: samples against probabilities, formulas and gradients against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from mileage.kernels import heads, random
from mileage.kernels.machine.frames import Frame, extended, frame_type, pointer_to
from mileage.kernels.reference.networks import parts as plain
from shims import shim

BRANCHES, NUMBERS = (4, 2, 3), 2
FRAME = extended(frame_type("n_actions action_size: int64"), heads.FIELDS)


SIZES = {"n_branches": len(BRANCHES), "n_choices": sum(BRANCHES), "action_size": len(BRANCHES) + NUMBERS}
PROBLEM = Frame(FRAME, branches=np.array(BRANCHES, np.int64), n_actions=0, **SIZES)


@shim
def draw(record: Any, head: Any, log_std: Any, mask: Any, rng: Any, actions: Any, log_probs: Any) -> None:
    for i in range(log_probs.shape[0]):
        log_probs[i] = heads.sample(
            record[0], pointer_to(head), pointer_to(log_std), pointer_to(mask), pointer_to(rng), pointer_to(actions[i])
        )


@shim
def mode_of(record: Any, head: Any, mask: Any, action: Any) -> None:
    heads.mode(record[0], pointer_to(head), pointer_to(mask), pointer_to(action))


@shim
def judged(record: Any, head: Any, log_std: Any, mask: Any, action: Any, out: Any, both: Any) -> None:
    log_prob, entropy = heads.log_probs(
        record[0], pointer_to(head), pointer_to(log_std), pointer_to(mask), pointer_to(action), pointer_to(out)
    )
    both[0] = log_prob
    both[1] = entropy


@shim
def descended(record: Any, log_std: Any, action: Any, factor: Any, coef: Any, out: Any, log_std_grad: Any) -> None:
    heads.slopes(
        record[0], pointer_to(log_std), pointer_to(action), np.float32(factor), np.float32(coef), np.float32(1.0),
        pointer_to(out), pointer_to(log_std_grad),
    )  # fmt: skip


@shim
def mended(record: Any, mask: Any) -> Any:
    return heads.allow_all_if_none(record[0], pointer_to(mask))


def problem(seed: int) -> tuple[Any, Any, Any, Any]:
    """Head, log deviations, a mask that leaves something of every choice, and an action that it allows."""
    rng = np.random.default_rng(seed)
    head = rng.normal(scale=2.0, size=sum(BRANCHES) + NUMBERS).astype(np.float32)
    log_std = rng.normal(scale=0.5, size=NUMBERS).astype(np.float32)
    mask = (rng.random(sum(BRANCHES)) < 0.5).astype(np.uint8)
    choices = rng.integers(0, BRANCHES)
    mask[np.cumsum([0, *BRANCHES[:-1]]) + choices] = 1
    return head, log_std, mask, np.array([*choices, *rng.normal(size=NUMBERS)], np.float32)


@pytest.mark.parametrize("seed", range(8))
def test_samples_follow_the_masked_probabilities(seed: int) -> None:
    head, log_std, mask, _ = problem(seed)
    n = 20_000
    actions, log_probs = np.zeros((n, len(BRANCHES) + NUMBERS), np.float32), np.zeros(n, np.float32)
    draw(PROBLEM.record, head, log_std, mask, random.streams(seed, 1, "parts")[0], actions, log_probs)
    start = 0
    for part, size in enumerate(BRANCHES):
        allowed = np.flatnonzero(mask[start : start + size])
        weights = np.exp(head[start : start + size][allowed].astype(np.float64))
        counts = np.bincount(actions[:, part].astype(int), minlength=size)
        assert counts.sum() == counts[allowed].sum()
        if len(allowed) > 1:
            assert stats.chisquare(counts[allowed], n * weights / weights.sum()).pvalue > 1e-4
        start += size
    for k in range(NUMBERS):
        z = (actions[:, len(BRANCHES) + k] - head[start + k]) / np.exp(log_std[k])
        assert stats.kstest(z, "norm").pvalue > 1e-4
    rows = 50
    want, _ = plain(np.tile(head, (rows, 1)), BRANCHES, log_std, np.tile(mask, (rows, 1)), actions[:rows])
    np.testing.assert_allclose(log_probs[:rows], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(8))
def test_the_mode_is_the_best_that_is_possible(seed: int) -> None:
    head, _, mask, action = problem(seed)
    mode_of(PROBLEM.record, head, mask, action)
    start = 0
    for part, size in enumerate(BRANCHES):
        possible = np.where(mask[start : start + size] != 0, head[start : start + size], -np.inf)
        assert action[part] == possible.argmax()
        start += size
    np.testing.assert_array_equal(action[len(BRANCHES) :], head[start:])


@pytest.mark.parametrize("seed", range(20))
def test_log_probability_entropy_and_gradients_equal_those_of_torch(seed: int) -> None:
    torch = pytest.importorskip("torch")
    head, log_std, mask, action = problem(seed)
    factor, coef = 0.7, 0.05
    x, s = (torch.tensor(each, dtype=torch.float64, requires_grad=True) for each in (head, log_std))
    log_prob, entropy, start = torch.zeros(()), torch.zeros(()), 0
    for part, size in enumerate(BRANCHES):
        logits = torch.where(torch.tensor(mask[start : start + size]) != 0, x[start : start + size], -torch.inf)
        one = torch.distributions.Categorical(logits=logits)
        allowed = one.probs > 0
        log_prob = log_prob + one.log_prob(torch.tensor(int(action[part])))
        entropy = entropy - (one.probs[allowed] * one.probs[allowed].log()).sum()
        start += size
    normal = torch.distributions.Normal(x[start:], s.exp())
    log_prob = log_prob + normal.log_prob(torch.tensor(action[len(BRANCHES) :], dtype=torch.float64)).sum()
    entropy = entropy + normal.entropy().sum()
    (factor * log_prob - coef * entropy).backward()
    out, both, slope = np.zeros_like(head), np.zeros(2, np.float32), np.zeros(NUMBERS, np.float32)
    record = PROBLEM.record
    judged(record, head, log_std, mask, action, out, both)
    np.testing.assert_allclose(both, [log_prob.item(), entropy.item()], rtol=2e-5, atol=1e-5)
    descended(record, log_std, action, factor, coef, out, slope)
    np.testing.assert_allclose(out, x.grad.numpy(), rtol=1e-4, atol=2e-6)
    np.testing.assert_allclose(slope, s.grad.numpy(), rtol=1e-4, atol=2e-6)
    assert not out[: sum(BRANCHES)][mask == 0].any()


def test_a_choice_with_nothing_possible_is_mended_and_reported() -> None:
    mask = np.array([0, 1, 0, 0, 0, 0, 1, 1, 1], np.uint8)
    assert mended(PROBLEM.record, mask)
    np.testing.assert_array_equal(mask, [0, 1, 0, 0, 1, 1, 1, 1, 1])
    assert not mended(PROBLEM.record, mask)


def test_a_frame_with_masks_does_not_begin_like_one_without() -> None:
    """Numba would take it for one, and run what was compiled for that."""
    base = frame_type("n_actions action_size: int64")
    assert list(FRAME.names or ())[: len(base.names or ())] != list(base.names or ())
