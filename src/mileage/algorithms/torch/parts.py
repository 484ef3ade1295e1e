"""Actions of several parts, and masks, on tensors: what `mileage.kernels.learners.parts` is to the native back end."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mileage.kernels.definitions import HALF_LOG_TWO_PI

# Stands for the logit of what is impossible: its probability is 0, and 0 times its logarithm is 0 as well.
_NEVER = -1e30


def _log_probs(head: Tensor, branches: Sequence[int], masks: Tensor) -> list[Tensor]:
    """Log-probabilities of every way to choose each part, (N, n) each."""
    logits = head[:, : sum(branches)].masked_fill(masks == 0, _NEVER)
    return [torch.log_softmax(each, 1) for each in logits.split(list(branches), 1)]


def sample(
    head: Tensor, branches: Sequence[int], log_std: Tensor, masks: Tensor, noise: Tensor, action: Tensor
) -> Tensor:
    """Write actions (N, A) and return their log-probabilities (N,).

    Args:
        head: logits of every choice, then means, (N, M + G).
        branches: how many ways there are to choose each part, C of them.
        log_std: log deviations (G,).
        masks: (N, M) uint8, 0 for what is impossible.
        noise: (N, C + G), a uniform draw for every choice and a normal one for every number.
        action: (N, C + G), written.
    """
    log_prob = torch.zeros(len(head), device=head.device)
    allowed = masks.split(list(branches), 1)
    for part, log_probs in enumerate(_log_probs(head, branches, masks)):
        # The number of choices whose cumulative probability is not above the draw, as in the native sampler; rounding
        # must not lead beyond the last one that is possible.
        below = (log_probs.exp().cumsum(1)[:, :-1] <= noise[:, [part]]).sum(1)
        last = log_probs.shape[1] - 1 - (allowed[part] != 0).flip(1).int().argmax(1)
        choice = torch.minimum(below, last)
        action[:, part] = choice
        log_prob = log_prob + log_probs.gather(1, choice[:, None])[:, 0]
    mean, normal = head[:, sum(branches) :], noise[:, len(branches) :]
    action[:, len(branches) :] = torch.addcmul(mean, normal, log_std.exp())
    return log_prob - (0.5 * normal * normal + log_std + HALF_LOG_TWO_PI).sum(1)


def judge(
    head: Tensor, branches: Sequence[int], log_std: Tensor, masks: Tensor, actions: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of actions (N, A) and entropies, (N,) each; arguments as those of `sample`."""
    log_prob, entropy = torch.zeros(len(head), device=head.device), torch.zeros(len(head), device=head.device)
    for part, log_probs in enumerate(_log_probs(head, branches, masks)):
        log_prob = log_prob + log_probs.gather(1, actions[:, [part]].long())[:, 0]
        entropy = entropy - (log_probs.exp() * log_probs).sum(1)
    z = (actions[:, len(branches) :] - head[:, sum(branches) :]) * torch.exp(-log_std)
    log_prob = log_prob - (0.5 * z * z + log_std + HALF_LOG_TWO_PI).sum(1)
    return log_prob, entropy + (log_std + 0.5 + HALF_LOG_TWO_PI).sum()
