"""Action distributions against their formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from mileage.kernels import heads, random
from mileage.kernels.machine.frames import pointer_to
from mileage.kernels.reference.networks import categorical, gaussian
from shims import shim


@shim
def normaliser_of(logits: Any) -> Any:
    return heads.log_normaliser(pointer_to(logits), logits.shape[0])


@shim
def best_of(logits: Any) -> Any:
    return heads.argmax(pointer_to(logits), logits.shape[0])


@shim
def choose(logits: Any, rng: Any, choices: Any, log_probs: Any) -> None:
    state = pointer_to(rng)
    for i in range(choices.shape[0]):
        choice, log_prob = heads.sample_categorical(pointer_to(logits), logits.shape[0], state)
        choices[i] = choice
        log_probs[i] = log_prob


@shim
def sample(mean: Any, log_std: Any, rng: Any, actions: Any, log_probs: Any) -> None:
    n = mean.shape[0]
    out = np.empty(n, np.float32)
    for i in range(log_probs.shape[0]):
        log_probs[i] = heads.sample_gaussian(pointer_to(mean), pointer_to(log_std), n, pointer_to(rng), pointer_to(out))
        for k in range(n):
            actions[i, k] = out[k]


def stream(seed: int) -> np.ndarray[Any, Any]:
    return random.streams(seed, 1, "test heads")[0]


LOGITS = [
    [0.0, 0.0],
    [1.0, -1.0, 0.5],
    [3.0],
    [1000.0, 999.0, -1000.0],
    [-80.0, -81.0],
    list(np.linspace(-2.0, 2.0, 18)),
]


@pytest.mark.parametrize("values", LOGITS, ids=lambda values: f"{len(values)} from {values[0]}")
def test_categorical_log_probs_and_frequencies(values: list[float]) -> None:
    logits, n = np.array(values, np.float32), 50_000
    choices, log_probs = np.zeros(n, np.int64), np.zeros(n, np.float32)
    choose(logits, stream(0), choices, log_probs)
    want, _ = categorical(np.broadcast_to(logits, (n, len(logits))), choices)
    np.testing.assert_allclose(log_probs, want, rtol=1e-5, atol=1e-4 if abs(logits[0]) > 100 else 1e-6)
    p = np.exp(categorical(np.broadcast_to(logits, (len(logits),) * 2), np.arange(len(logits)))[0])
    likely = p * n > 5.0
    counts = np.bincount(choices, minlength=len(logits))
    assert counts[~likely].sum() <= 20
    if likely.sum() > 1:
        expected = p[likely] / p[likely].sum() * counts[likely].sum()
        assert stats.chisquare(counts[likely], expected).pvalue > 1e-3


def test_log_normaliser_neither_overflows_nor_underflows() -> None:
    for values in LOGITS:
        logits = np.array(values, np.float32)
        want = np.logaddexp.reduce(logits.astype(np.float64))
        assert normaliser_of(logits) == pytest.approx(want, rel=1e-6, abs=1e-6)
    # log(e^1 + e^2 + e^3) worked by hand: 3 + log(1 + e^-1 + e^-2).
    assert normaliser_of(np.array([1.0, 2.0, 3.0], np.float32)) == pytest.approx(3.4076059, rel=1e-6)


def test_argmax_takes_the_first_of_equals() -> None:
    assert best_of(np.array([1.0, 3.0, 3.0, 2.0], np.float32)) == 1
    assert best_of(np.array([5.0], np.float32)) == 0
    assert best_of(np.array([-3.0, -2.0, -1.0], np.float32)) == 2


def test_gaussian_moments_and_log_probs() -> None:
    mean, log_std = np.array([0.5, -3.0], np.float32), np.array([-1.0, 0.7], np.float32)
    n = 200_000
    actions, log_probs = np.zeros((n, 2), np.float32), np.zeros(n, np.float32)
    sample(mean, log_std, stream(1), actions, log_probs)
    std = np.exp(log_std.astype(np.float64))
    standard = (actions - mean) / std
    for column in standard.T:
        assert stats.kstest(column, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(standard.T)[0, 1]) < 5.0 / np.sqrt(n)
    want, _ = gaussian(mean.astype(np.float64), log_std, actions)
    np.testing.assert_allclose(log_probs, want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(log_probs[:5], stats.norm.logpdf(actions[:5], mean, std).sum(axis=1), atol=1e-4)


def test_reference_entropies_are_those_of_scipy() -> None:
    logits = np.array([[1.0, -1.0, 0.5]])
    p = np.exp(logits[0]) / np.exp(logits[0]).sum()
    assert categorical(logits, [0])[1][0] == pytest.approx(stats.entropy(p))
    log_std = np.array([0.3, -0.2])
    want = stats.norm(scale=np.exp(log_std)).entropy().sum()
    assert gaussian(np.zeros((1, 2)), log_std, np.zeros((1, 2)))[1][0] == pytest.approx(want)
