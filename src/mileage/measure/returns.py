"""Aggregates of returns over runs and tasks that hold with few seeds (Agarwal et al., 2021), seeded and vectorised."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from mileage.errors import UsageError
from mileage.measure.intervals import DEFAULT_LEVEL, FEWEST_RUNS, Estimate, quantile_interval, samples, too_few
from mileage.types import F64

DEFAULT_RESAMPLES = 10_000
# Resamples are made in blocks, so that memory stays bounded whatever the number of runs.
_BLOCK_ELEMENTS = 4_000_000

Statistic = Callable[[F64], F64]


def scores_matrix(scores: ArrayLike, name: str = "scores") -> F64:
    """`scores` as (runs, tasks) float64; one dimension means runs of one task."""
    array = np.asarray(scores, np.float64)
    return samples(array[:, None] if array.ndim == 1 else array, name, ndim=2)


def iqm(scores: ArrayLike) -> float:
    """Interquartile mean of `scores`, (runs,) or (runs, tasks) float64: the mean of the middle half of all of them."""
    return float(_iqm_last_axis(scores_matrix(scores).reshape(1, -1))[0])


def _iqm_last_axis(values: F64) -> F64:
    """IQM along the last axis; a quarter, rounded down, is cut off on either side."""
    n = values.shape[-1]
    cut = n // 4
    if cut == 0:
        return np.asarray(values.mean(axis=-1))
    ordered = np.partition(values, [cut, n - cut - 1], axis=-1)
    return np.asarray(ordered[..., cut : n - cut].mean(axis=-1))


def stratified_resamples(scores: F64, resamples: int, rng: np.random.Generator) -> F64:
    """Resample runs within each task of `scores` (runs, tasks), with replacement: (resamples, runs × tasks) float64."""
    runs, tasks = scores.shape
    index = rng.integers(0, runs, (resamples, runs, tasks))
    return scores[index, np.arange(tasks)].reshape(resamples, runs * tasks)


def bootstrap_draws(
    scores: ArrayLike, statistic: Statistic = _iqm_last_axis, *, resamples: int = DEFAULT_RESAMPLES, seed: int = 0
) -> F64:
    """`statistic`, along the last axis, of stratified resamples of `scores` (runs, tasks): (resamples,) float64."""
    matrix = scores_matrix(scores)
    rng = np.random.default_rng(seed)
    block = max(1, min(resamples, _BLOCK_ELEMENTS // matrix.size))
    sizes = [min(block, resamples - start) for start in range(0, resamples, block)]
    return np.concatenate([statistic(stratified_resamples(matrix, size, rng)) for size in sizes])


def iqm_estimate(
    scores: ArrayLike, *, level: float = DEFAULT_LEVEL, resamples: int = DEFAULT_RESAMPLES, seed: int = 0
) -> Estimate:
    """IQM of `scores`, (runs,) or (runs, tasks), with its stratified percentile-bootstrap interval."""
    matrix = scores_matrix(scores)
    if len(matrix) < FEWEST_RUNS:
        return Estimate(iqm(matrix), None, too_few(len(matrix)))
    return Estimate(iqm(matrix), quantile_interval(bootstrap_draws(matrix, resamples=resamples, seed=seed), level))


def iqm_band(values: ArrayLike, *, resamples: int = DEFAULT_RESAMPLES, seed: int = 0) -> list[Estimate]:
    """The IQM of every column of `values`, (runs, points), with the interval that `iqm_estimate` gives it.

    Runs are drawn once for all columns, which is what the same seed would draw for each.
    """
    matrix = scores_matrix(values)
    runs = len(matrix)
    if runs < FEWEST_RUNS:
        return [Estimate(iqm(column), None, too_few(runs)) for column in matrix.T]
    drawn = np.random.default_rng(seed).integers(0, runs, (resamples, runs))
    return [Estimate(iqm(column), quantile_interval(_iqm_last_axis(column[drawn]))) for column in matrix.T.copy()]


def probability_of_improvement(a: ArrayLike, b: ArrayLike) -> float:
    """Probability that a run of `a` scores above a run of `b` on a task drawn at random; ties count half.

    `a` is (runs_a, tasks), `b` is (runs_b, tasks), or one dimension each for a single task.
    """
    first, second = scores_matrix(a, "a"), scores_matrix(b, "b")
    _same_tasks(first, second)
    return float(_improvement(first[None], second[None])[0])


def improvement_estimate(
    a: ArrayLike, b: ArrayLike, *, level: float = DEFAULT_LEVEL, resamples: int = 2_000, seed: int = 0
) -> Estimate:
    """Probability of improvement of `a` over `b` with its stratified bootstrap interval; arguments as above."""
    first, second = scores_matrix(a, "a"), scores_matrix(b, "b")
    _same_tasks(first, second)
    value = probability_of_improvement(first, second)
    fewest = min(len(first), len(second))
    if fewest < FEWEST_RUNS:
        return Estimate(value, None, too_few(fewest))
    rng = np.random.default_rng(seed)
    block = max(1, _BLOCK_ELEMENTS // (len(first) * len(second) * first.shape[1]))
    parts = []
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        drawn_a = stratified_resamples(first, size, rng).reshape(size, *first.shape)
        drawn_b = stratified_resamples(second, size, rng).reshape(size, *second.shape)
        parts.append(_improvement(drawn_a, drawn_b))
    return Estimate(value, quantile_interval(np.concatenate(parts), level))


def _improvement(a: F64, b: F64) -> F64:
    """Mann-Whitney's statistic per task, averaged over tasks: (d, runs_a, tasks), (d, runs_b, tasks) → (d,)."""
    difference = a[:, :, None, :] - b[:, None, :, :]
    return np.asarray((0.5 * (np.sign(difference) + 1.0)).mean(axis=(1, 2, 3)))


def _same_tasks(a: F64, b: F64) -> None:
    if a.shape[1] != b.shape[1]:
        raise UsageError(f"a has {a.shape[1]} tasks and b has {b.shape[1]}: compare the same tasks in the same order")
