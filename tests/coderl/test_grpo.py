from __future__ import annotations

import importlib.util

import numpy as np
import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

from mileage.coderl.grpo import (
    GRPO,
    Answers,
    GRPOConfig,
    Transformer,
    TransformerConfig,
    assign_rows,
    clipped_loss,
    k3,
    pack,
)
from mileage.errors import UsageError
from mileage.kernels.tokens import token_kl

END = 1


def make(seed: int = 0, **config: object) -> GRPO:
    torch.manual_seed(seed)
    policy = Transformer(TransformerConfig(vocabulary=7, context=64, width=16, layers=1, heads=2))
    return GRPO(policy, GRPOConfig(**{"row_length": 32, "max_new_tokens": 6, **config}), end_token=END, seed=seed)  # type: ignore[arg-type]


def test_rows_are_filled_longest_first_and_hold_every_sequence_once() -> None:
    assert assign_rows([3, 9, 4, 6, 1], 10) == [[1, 4], [3, 2], [0]]
    with pytest.raises(UsageError, match="row_length 10"):
        assign_rows([11], 10)


def test_packing_by_hand() -> None:
    packed = pack([(5, 6, 2), (4, 3)], [1, 1], 6)
    assert packed.tokens.tolist() == [[5, 6, 2, 4, 3, 0]]
    assert packed.positions.tolist() == [[0, 1, 2, 0, 1, 0]]
    assert packed.segments.tolist() == [[0, 0, 0, 1, 1, -1]]
    assert packed.columns.tolist() == [1, 2, 4]
    assert packed.owners.tolist() == [0, 0, 1]
    assert packed.filled == pytest.approx(5 / 6)


def test_packed_log_probs_equal_those_of_each_sequence_alone() -> None:
    grpo = make()
    answers = grpo.sample([[2, 3], [4, 5, 6, 2], [3]], group_size=3)
    packed = grpo.log_probs(grpo.policy, pack(answers.sequences, answers.prompt_lengths, 32))
    alone = []
    for sequence, prompt in zip(answers.sequences, answers.prompt_lengths, strict=True):
        logits = grpo.policy(torch.tensor([sequence]))[0]
        scores = torch.log_softmax(logits, -1)
        alone += [scores[place - 1, sequence[place]] for place in range(prompt, len(sequence))]
    torch.testing.assert_close(packed, torch.stack(alone), atol=1e-5, rtol=1e-5)
    # The log-probabilities kept while sampling are the same numbers.
    kept = torch.tensor([value for row in answers.log_probs for value in row])
    torch.testing.assert_close(packed, kept, atol=1e-5, rtol=1e-5)


def test_an_answer_ends_at_the_end_token_or_at_the_limit() -> None:
    answers = make().sample([[2]] * 20, group_size=2)
    for index in range(40):
        answer = answers.answer(index)
        assert END not in answer[:-1]
        assert answer[-1] == END or len(answer) == 6
        assert len(answers.log_probs[index]) == len(answer)


def test_the_k3_term_agrees_with_the_kernel() -> None:
    rng = np.random.default_rng(0)
    new, reference = (np.log(rng.uniform(0.01, 1, (1, 50))).astype(np.float32) for _ in range(2))
    ours = float(k3(torch.from_numpy(new), torch.from_numpy(reference)).sum())
    assert ours == pytest.approx(float(token_kl(new, reference, estimator="k3")[0]), rel=1e-5)
    assert float(k3(torch.zeros(3), torch.zeros(3)).sum()) == 0.0


def test_the_clipped_loss_by_hand() -> None:
    # Ratios 2 and 0.5 with clip 0.2: a good token earns at most 1.2, a bad one is charged in full above 1 and at
    # least 0.8 below.
    new = torch.log(torch.tensor([2.0, 2.0, 0.5, 0.5]))
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
    loss = clipped_loss(new, torch.zeros(4), advantages, 0.2)
    assert loss.tolist() == pytest.approx([-1.2, 2.0, -0.5, 0.8])


def test_the_first_gradient_is_that_of_the_policy_gradient() -> None:
    """At the sampling policy, the ratio is 1 and the divergence has no slope: the loss is REINFORCE's."""
    grpo = make(kl_coef=0.5, length_normalize=False)
    answers = grpo.sample([[2], [3]], group_size=2)
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5])
    packed = pack(answers.sequences, answers.prompt_lengths, 32)
    old = torch.tensor([value for row in answers.log_probs for value in row])
    new = grpo.log_probs(grpo.policy, packed)
    reference = grpo.log_probs(grpo.reference, packed)
    loss = (clipped_loss(new, old, advantages[packed.owners], 0.2) + 0.5 * k3(new, reference)).mean()
    expected = (-advantages[packed.owners] * new).mean()
    parameters = list(grpo.policy.parameters())
    ours = torch.autograd.grad(loss, parameters, retain_graph=True)
    theirs = torch.autograd.grad(expected, parameters)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-3)


def test_groups_without_a_difference_teach_nothing() -> None:
    grpo = make(kl_coef=0.0)
    before = [parameter.clone() for parameter in grpo.policy.parameters()]
    stats = grpo.update(grpo.sample([[2], [3]]), np.ones((2, 8), np.float32))
    assert stats.flat_groups == 1.0
    for old, new in zip(before, grpo.policy.parameters(), strict=True):
        torch.testing.assert_close(old, new)


def test_each_answer_or_each_token_weighs_the_same() -> None:
    owners = torch.tensor([0, 0, 0, 1])
    assert make(length_normalize=True)._weights(owners, 2).tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])
    assert make(length_normalize=False)._weights(owners, 2).tolist() == pytest.approx([1 / 4] * 4)


def test_a_prompt_is_learned_to_be_answered_with_its_own_token() -> None:
    grpo = make(learning_rate=1e-2, max_new_tokens=2)
    rates = []
    for _ in range(40):
        prompts = [[token] for token in (2, 3, 4, 5)]
        answers = grpo.sample(prompts, group_size=8)
        hits = [float(answers.answer(index)[0] == prompts[index // 8][0]) for index in range(32)]
        rewards = np.array(hits, np.float32).reshape(4, 8)
        rates.append(grpo.update(answers, rewards).reward_mean)
    assert np.mean(rates[:3]) < 0.5
    assert np.mean(rates[-5:]) > 0.9


def test_the_same_seed_gives_the_same_weights_and_the_reference_never_moves() -> None:
    def train() -> tuple[list[torch.Tensor], GRPO]:
        grpo = make(seed=3)
        for _ in range(2):
            answers = grpo.sample([[2], [4]])
            rewards = np.array([len(answers.answer(i)) for i in range(16)], np.float32).reshape(2, 8)
            grpo.update(answers, rewards)
        return [parameter.detach() for parameter in grpo.policy.parameters()], grpo

    (first, grpo), (second, _) = train(), train()
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    fresh = make(seed=3)
    for a, b in zip(grpo.reference.parameters(), fresh.policy.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["group_size", "temperature", "clip", "kl_coef", "epochs"])
def test_impossible_hyperparameters_are_refused_by_name(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        GRPOConfig(**{name: -1})


def test_rewards_must_fit_the_answers() -> None:
    with pytest.raises(UsageError, match="3 entries for 2 answers"):
        make().update(Answers(((2, 1), (2, 1)), (1, 1), ((0.0,), (0.0,))), np.zeros((1, 3), np.float32))
