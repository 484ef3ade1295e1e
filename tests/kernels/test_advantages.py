"""GAE, n-step returns and V-trace against worked examples, their plain versions, and each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mileage.kernels import arrays as advantages
from mileage.kernels import gae, nstep_returns, reference, vtrace
from mileage.kernels.machine import team as _shards

REWARDS, VALUES, LAST = [1.0, 2.0, 3.0], [0.5, 1.0, 1.5], [2.0]


def column(numbers: list[float], dtype: Any = np.float32) -> Any:
    """One environment's numbers as (T, 1)."""
    return np.array(numbers, dtype).reshape(-1, 1)


def rollout(seed: int, horizon: int, n_envs: int, ends: float = 0.2) -> dict[str, Any]:
    rng = np.random.default_rng(seed)

    def floats() -> Any:
        return rng.normal(size=(horizon, n_envs)).astype(np.float32)

    return {
        "rewards": floats(),
        "values": floats(),
        "terminated": rng.random((horizon, n_envs)) < ends,
        "last_values": rng.normal(size=n_envs).astype(np.float32),
        "truncated": rng.random((horizon, n_envs)) < ends,
        "truncated_values": floats(),
    }


def without_truncation(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: array for name, array in arrays.items() if not name.startswith("truncated")}


rollouts = st.builds(
    rollout, st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 40), st.sampled_from([0.0, 0.2, 1.0])
)
unit = st.floats(0.0, 1.0)


class TestGae:
    def test_worked_example(self) -> None:
        # gamma = lambda = 1/2, so gamma * lambda = 1/4.
        # t=2: delta = 3 + 2/2 - 1.5 = 2.5,    A = 2.5,                   return 2.5 + 1.5 = 4
        # t=1: delta = 2 + 1.5/2 - 1 = 1.75,   A = 1.75 + 2.5/4 = 2.375,  return 3.375
        # t=0: delta = 1 + 1/2 - 0.5 = 1,      A = 1 + 2.375/4 = 1.59375, return 2.09375
        got = gae(column(REWARDS), column(VALUES), column([0, 0, 0], bool), np.float32(LAST), gamma=0.5, lambda_=0.5)
        np.testing.assert_array_equal(got[0], column([1.59375, 2.375, 2.5]))
        np.testing.assert_array_equal(got[1], column([2.09375, 3.375, 4.0]))

    def test_terminated_step_is_worth_its_reward(self) -> None:
        # t=1: A = 2 - 1 = 1, return 2; t=0: A = 1 + 1/4 = 1.25, return 1.75; t=2 as without an end.
        got = gae(column(REWARDS), column(VALUES), column([0, 1, 0], bool), np.float32(LAST), gamma=0.5, lambda_=0.5)
        np.testing.assert_array_equal(got[0], column([1.25, 1.0, 2.5]))
        np.testing.assert_array_equal(got[1], column([1.75, 2.0, 4.0]))

    def test_truncated_step_bootstraps_from_its_final_observation(self) -> None:
        # t=1: A = 2 + 4/2 - 1 = 3, return 4; t=0: A = 1 + 3/4 = 1.75, return 2.25; t=2 as without an end.
        got = gae(
            column(REWARDS),
            column(VALUES),
            column([0, 0, 0], bool),
            np.float32(LAST),
            truncated=column([0, 1, 0], bool),
            truncated_values=column([np.nan, 4.0, np.nan]),
            gamma=0.5,
            lambda_=0.5,
        )
        np.testing.assert_array_equal(got[0], column([1.75, 3.0, 2.5]))
        np.testing.assert_array_equal(got[1], column([2.25, 4.0, 4.0]))

    def test_step_both_terminated_and_truncated_is_terminated(self) -> None:
        arrays = rollout(0, 9, 5, ends=0.5)
        both = arrays | {"terminated": arrays["terminated"] | arrays["truncated"]}
        np.testing.assert_array_equal(gae(**both)[0], gae(**without_truncation(both))[0])

    @given(rollouts, unit, unit)
    def test_equals_reference(self, arrays: dict[str, Any], gamma: float, lambda_: float) -> None:
        for inputs in (arrays, without_truncation(arrays)):
            got = gae(**inputs, gamma=gamma, lambda_=lambda_)
            want = reference.gae(**inputs, gamma=gamma, lambda_=lambda_)
            np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(got[1], want[1], rtol=1e-5, atol=1e-5)

    @given(rollouts, unit)
    def test_lambda_one_is_discounted_return_minus_value(self, arrays: dict[str, Any], gamma: float) -> None:
        advantages_, returns = gae(**arrays, gamma=gamma, lambda_=1.0)
        discounted = nstep_returns(**arrays, n=len(arrays["rewards"]), gamma=gamma)
        np.testing.assert_allclose(returns, discounted, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(advantages_, discounted - arrays["values"], rtol=1e-5, atol=1e-5)

    @given(rollouts, unit)
    def test_lambda_zero_is_one_step_error(self, arrays: dict[str, Any], gamma: float) -> None:
        np.testing.assert_allclose(
            gae(**arrays, gamma=gamma, lambda_=0.0)[1],
            nstep_returns(**arrays, n=1, gamma=gamma),
            rtol=1e-5,
            atol=1e-5,
        )

    def test_nan_stays_within_its_episode_and_its_past(self) -> None:
        arrays = rollout(1, 6, 2, ends=0.0)
        clean = gae(**arrays)[0]
        arrays["terminated"][1, 0] = True
        arrays["rewards"][3, 0] = np.nan
        spoiled = gae(**arrays)[0]
        # Steps 2 and 3 of environment 0 lead to or hold the NaN; steps 0 and 1 are another episode; 4 and 5 come later.
        np.testing.assert_array_equal(np.isnan(spoiled), column([0, 0, 1, 1, 0, 0], bool) * np.array([True, False]))
        np.testing.assert_array_equal(spoiled[:, 1], clean[:, 1])


class TestNstepReturns:
    def test_worked_example(self) -> None:
        # n = 2, gamma = 1/2.
        # t=2: the rollout ends: 3 + 2/2 = 4;  t=1: 2 + 3/2 + 2/4 = 4;  t=0: 1 + 2/2 + 1.5/4 = 2.375
        got = nstep_returns(column(REWARDS), column(VALUES), column([0, 0, 0], bool), np.float32(LAST), n=2, gamma=0.5)
        np.testing.assert_array_equal(got, column([2.375, 4.0, 4.0]))

    def test_worked_example_with_ends(self) -> None:
        # terminated at 1: t=1: 2;             t=0: 1 + 2/2 = 2
        # truncated at 1:  t=1: 2 + 4/2 = 4;   t=0: 1 + 4/2 = 3
        shared: Any = {"n": 2, "gamma": 0.5}
        end, none = column([0, 1, 0], bool), column([0, 0, 0], bool)
        terminated = nstep_returns(column(REWARDS), column(VALUES), end, np.float32(LAST), **shared)
        truncated = nstep_returns(
            column(REWARDS),
            column(VALUES),
            none,
            np.float32(LAST),
            truncated=end,
            truncated_values=column([np.nan, 4.0, np.nan]),
            **shared,
        )
        np.testing.assert_array_equal(terminated, column([2.0, 2.0, 4.0]))
        np.testing.assert_array_equal(truncated, column([3.0, 4.0, 4.0]))

    def test_more_steps_than_there_are_reach_the_end(self) -> None:
        inputs = (column(REWARDS), column(VALUES), column([0, 0, 0], bool), np.float32(LAST))
        np.testing.assert_array_equal(nstep_returns(*inputs, n=10**30), nstep_returns(*inputs, n=3))

    @given(rollouts, st.integers(1, 15), unit)
    def test_equals_reference(self, arrays: dict[str, Any], n: int, gamma: float) -> None:
        for inputs in (arrays, without_truncation(arrays)):
            got = nstep_returns(**inputs, n=n, gamma=gamma)
            np.testing.assert_allclose(got, reference.nstep_returns(**inputs, n=n, gamma=gamma), rtol=1e-5, atol=1e-5)


class TestVtrace:
    # Ratios 2 and 1/2, gamma = 1/2, last value 4.
    INPUTS: Any = (
        np.log(column([2.0, 0.5])),
        column([1.0, 2.0]),
        column([1.0, 3.0]),
        column([0, 0], bool),
        np.float32([4.0]),
    )

    def test_worked_example(self) -> None:
        # t=1: rho = 1/2, delta = (2 + 4/2 - 3)/2 = 1/2,  vs = 3.5,                            pg = 1/2
        # t=0: rho = c = 1, delta = 1 + 3/2 - 1 = 1.5,    vs = 1 + 1.5 + (3.5 - 3)/2 = 2.75,   pg = 1 + 3.5/2 - 1 = 1.75
        targets, advantages_ = vtrace(*self.INPUTS, gamma=0.5)
        np.testing.assert_allclose(targets, column([2.75, 3.5]), rtol=1e-6)
        np.testing.assert_allclose(advantages_, column([1.75, 0.5]), rtol=1e-6)

    def test_worked_example_with_wider_rho_bar(self) -> None:
        # t=0: rho = 2, c = 1, delta = 2 * 1.5 = 3, vs = 1 + 3 + (3.5 - 3)/2 = 4.25, pg = 2 * 1.75 = 3.5
        targets, advantages_ = vtrace(*self.INPUTS, gamma=0.5, rho_bar=3.0)
        np.testing.assert_allclose(targets, column([4.25, 3.5]), rtol=1e-6)
        np.testing.assert_allclose(advantages_, column([3.5, 0.5]), rtol=1e-6)

    @given(rollouts, unit, unit, st.floats(0.1, 1.0), st.floats(1.0, 3.0))
    def test_equals_reference(
        self, arrays: dict[str, Any], gamma: float, lambda_: float, c_bar: float, rho_bar: float
    ) -> None:
        log_ratios = np.random.default_rng(0).normal(size=arrays["rewards"].shape).astype(np.float32)
        for inputs in (arrays, without_truncation(arrays)):
            options = {"gamma": gamma, "lambda_": lambda_, "c_bar": c_bar, "rho_bar": rho_bar}
            got = vtrace(log_ratios, **inputs, **options)
            want = reference.vtrace(log_ratios, **inputs, **options)
            np.testing.assert_allclose(got[0], want[0], rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(got[1], want[1], rtol=1e-4, atol=1e-4)

    @given(rollouts, unit, unit)
    def test_on_policy_targets_are_gae_returns(self, arrays: dict[str, Any], gamma: float, lambda_: float) -> None:
        targets, _ = vtrace(np.zeros_like(arrays["rewards"]), **arrays, gamma=gamma, lambda_=lambda_)
        np.testing.assert_allclose(targets, gae(**arrays, gamma=gamma, lambda_=lambda_)[1], rtol=1e-5, atol=1e-5)

    def test_ratios_beyond_float32_are_clipped(self) -> None:
        arrays = without_truncation(rollout(3, 4, 3, ends=0.0))
        huge = vtrace(np.full((4, 3), 500.0, np.float32), **arrays)
        np.testing.assert_array_equal(huge[0], vtrace(np.zeros((4, 3), np.float32), **arrays)[0])


CALLS = [
    pytest.param(gae, {}, id="gae"),
    pytest.param(nstep_returns, {"n": 3}, id="nstep_returns"),
    pytest.param(vtrace, {}, id="vtrace"),
]


def inputs_for(function: Any, horizon: int = 7, n_envs: int = 11) -> dict[str, Any]:
    arrays = rollout(5, horizon, n_envs)
    if function is vtrace:
        log_ratios = np.random.default_rng(6).normal(size=(horizon, n_envs)).astype(np.float32)
        arrays = {"log_ratios": log_ratios} | arrays
    return arrays


def pair(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize(("function", "options"), CALLS)
class TestAllRollouts:
    @pytest.mark.parametrize("dtype", [np.uint8, np.float32])
    def test_masks_of_any_accepted_dtype_mean_the_same(self, function: Any, options: Any, dtype: Any) -> None:
        arrays = inputs_for(function)
        # Any non-zero number is true.
        masks = {name: arrays[name].astype(dtype) * 2 for name in ("terminated", "truncated")}
        for got, want in zip(
            pair(function(**(arrays | masks), **options)), pair(function(**arrays, **options)), strict=True
        ):
            np.testing.assert_array_equal(got, want)

    def test_out_is_written_and_returned(self, function: Any, options: Any) -> None:
        arrays = inputs_for(function)
        before = {name: array.copy() for name, array in arrays.items()}
        want = function(**arrays, **options)
        out: Any = tuple(np.full_like(array, np.nan) for array in pair(want))
        out = out if isinstance(want, tuple) else out[0]
        got = function(**arrays, **options, out=out)
        for a, b, c in zip(pair(got), pair(want), pair(out), strict=True):
            assert a is c
            np.testing.assert_array_equal(a, b)
        for name, array in before.items():
            np.testing.assert_array_equal(arrays[name], array)

    def test_read_only_inputs_are_fine(self, function: Any, options: Any) -> None:
        arrays = inputs_for(function)
        want = function(**arrays, **options)
        for array in arrays.values():
            array.flags.writeable = False
        for a, b in zip(pair(function(**arrays, **options)), pair(want), strict=True):
            np.testing.assert_array_equal(a, b)

    def test_threads_change_nothing(self, function: Any, options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        arrays = inputs_for(function, 5, 100)
        want = function(**arrays, **options)
        monkeypatch.setattr(_shards, "PARALLEL_WORK", 1)
        monkeypatch.setattr(_shards, "_cores", lambda: 3)
        for a, b in zip(pair(function(**arrays, **options)), pair(want), strict=True):
            np.testing.assert_array_equal(a, b)

    def test_out_overlapping_an_input_is_refused(self, function: Any, options: Any) -> None:
        arrays = inputs_for(function)
        memory = np.zeros(8 * 11, np.float32)
        arrays["values"] = memory[: 7 * 11].reshape(7, 11)
        clash = memory[11:].reshape(7, 11)
        out = (np.empty((7, 11), np.float32), clash) if function is not nstep_returns else clash
        with pytest.raises(ValueError, match=r"out shares memory"):
            function(**arrays, **options, out=out)

    @pytest.mark.parametrize(
        "name", ["rewards", "values", "terminated", "last_values", "truncated", "truncated_values"]
    )
    def test_wrong_arrays_are_named(self, function: Any, options: Any, name: str) -> None:
        arrays = inputs_for(function)
        array = arrays[name]
        wrong = {
            "shape": array[1:].copy(),
            "dtype": array.astype(np.float64),
            "contiguous": np.repeat(array, 2, axis=-1)[..., ::2],
            "NumPy array": array.tolist(),
        }
        for message, bad in wrong.items():
            # The array that gives the shape makes its neighbour the wrong one.
            culprit = rf"{name}|values" if message == "shape" and name == "rewards" and function is not vtrace else name
            with pytest.raises(ValueError, match=rf"^({culprit}) .*{message}"):
                function(**(arrays | {name: bad}), **options)

    def test_wrong_settings_are_named(self, function: Any, options: Any) -> None:
        arrays = inputs_for(function)
        wrong: list[dict[str, float]] = [{"gamma": -0.1}, {"gamma": 1.01}, {"gamma": float("nan")}, {"gamma": 10**400}]
        wrong += (
            [{"n": 0}, {"n": 2.5}, {"n": 2.0}] if function is nstep_returns else [{"lambda_": -0.5}, {"lambda_": 2.0}]
        )
        wrong += [{"c_bar": 2.0}, {"rho_bar": 0.0}, {"c_bar": -1.0}] if function is vtrace else []
        for setting in wrong:
            with pytest.raises(ValueError, match=next(iter(setting))):
                function(**arrays, **(options | setting))

    @pytest.mark.parametrize("odd", [None, "0.9", np.array(0.9), np.array([0.9]), [0.9], 0.9j])
    def test_settings_that_are_no_numbers_are_named(self, function: Any, options: Any, odd: Any) -> None:
        arrays = inputs_for(function)
        for name in ("gamma", *(() if function is nstep_returns else ("lambda_",)), *options):
            with pytest.raises(
                ValueError, match=rf"^{name} must be a (whole )?number .*not |^{name} must be a number, not"
            ):
                function(**arrays, **(options | {name: odd}))

    def test_numbers_of_any_kind_are_the_same_number(self, function: Any, options: Any) -> None:
        arrays = inputs_for(function)
        want = pair(function(**arrays, **options, gamma=1.0))
        for one in (1, np.float32(1.0), np.int64(1)):
            for a, b in zip(pair(function(**arrays, **options, gamma=one)), want, strict=True):
                np.testing.assert_array_equal(a, b)

    @pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
    def test_arrays_that_mean_something_else_are_named(self, function: Any, options: Any) -> None:
        for name in ("rewards", "values", "terminated", "truncated", "last_values"):
            for odd in (np.matrix, np.ma.masked_array, lambda _: None, lambda _: "rewards"):
                arrays = inputs_for(function)
                arrays[name] = odd(arrays[name])
                if name == "truncated" and arrays[name] is None:
                    continue  # nothing was cut off
                with pytest.raises(ValueError, match=rf"^{name} must be .*not (matrix|MaskedArray|NoneType|str)"):
                    function(**arrays, **options)

    def test_the_rollout_of_one_environment_may_be_a_line(self, function: Any, options: Any) -> None:
        arrays = inputs_for(function)
        one = {name: array[..., :1].copy() for name, array in arrays.items()}
        want = [result[:, 0] for result in pair(function(**one, **options))]
        line = {name: array[:, 0] if array.ndim == 2 else array for name, array in one.items()}
        lasts = (
            line["last_values"],
            float(line["last_values"][0]),
            line["last_values"].reshape(()),
            line["last_values"][0],
        )
        for last in lasts:
            got = pair(function(**(line | {"last_values": last}), **options))
            assert [result.shape for result in got] == [(7,)] * len(got)
            for a, b in zip(got, want, strict=True):
                np.testing.assert_array_equal(a, b)
        out = np.empty((2, 7), np.float32)
        given = out[0] if function is nstep_returns else (out[0], out[1])
        assert function(**line, **options, out=given) is given
        np.testing.assert_array_equal(out[: len(want)], want)
        with pytest.raises(ValueError, match=r"^last_values must"):
            function(**(line | {"last_values": None}), **options)

    def test_truncation_needs_both_its_arrays(self, function: Any, options: Any) -> None:
        arrays = inputs_for(function)
        for missing in ("truncated", "truncated_values"):
            with pytest.raises(ValueError, match=rf"^{missing} is missing"):
                function(**(arrays | {missing: None}), **options)

    def test_check_finite_names_the_array_and_the_place(self, function: Any, options: Any) -> None:
        for name in ("rewards", "values", "last_values"):
            arrays = inputs_for(function)
            arrays[name][..., 2] = np.inf
            with pytest.raises(ValueError, match=rf"^{name} holds inf at index \(.*2,?\)"):
                function(**arrays, **options, check_finite=True)

    def test_check_finite_looks_only_at_truncated_values_that_are_read(self, function: Any, options: Any) -> None:
        arrays = inputs_for(function)
        arrays["truncated_values"][~arrays["truncated"]] = np.nan
        for result in pair(function(**arrays, **options, check_finite=True)):
            assert np.isfinite(result).all()
        arrays["truncated_values"][arrays["truncated"]] = np.nan
        with pytest.raises(ValueError, match=r"^truncated_values holds nan"):
            function(**arrays, **options, check_finite=True)

    def test_wrong_out_is_named(self, function: Any, options: Any) -> None:
        arrays = inputs_for(function)
        good = np.empty((7, 11), np.float32)
        locked = np.empty((7, 11), np.float32)
        locked.flags.writeable = False
        for bad in (good[:5], good.astype(np.float64), locked):
            out = bad if function is nstep_returns else (bad, np.empty_like(good))
            with pytest.raises(ValueError, match=r"^out"):
                function(**arrays, **options, out=out)
        with pytest.raises(ValueError, match=r"^out"):
            function(**arrays, **options, out=[good])


def test_kernels_can_be_called_on_some_columns() -> None:
    arrays = rollout(8, 5, 20)
    want = gae(**arrays)
    out = np.full((5, 20), np.nan, np.float32), np.full((5, 20), np.nan, np.float32)
    advantages.gae_columns(4, 12, *arrays.values(), 0.99, 0.95, *out)
    np.testing.assert_array_equal(out[0][:, 4:12], want[0][:, 4:12])
    assert np.isnan(out[0][:, :4]).all()
    assert np.isnan(out[1][:, 12:]).all()
