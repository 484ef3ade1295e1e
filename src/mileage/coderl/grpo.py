"""GRPO (torch): a policy over tokens rewarded relative to its other answers, and a small decoder-only transformer.

Shao et al., 2024, "DeepSeekMath" (arXiv:2402.03300): K answers to each prompt, advantages normalised within the group,
PPO's clipped ratio per token, and the k3 estimate of the divergence from a frozen reference policy. There is no critic.
Sequences of different lengths are packed into rows, so that no computation goes into padding.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from mileage.config import Bound, Count, Limit, Range, check_ranges
from mileage.errors import UsageError
from mileage.kernels.arrays import group_advantages

PAD_SEGMENT = -1


@dataclass(frozen=True)
class GRPOConfig:
    """Hyperparameters of GRPO."""

    group_size: Annotated[int, Range("at least 2", lambda value: value >= 2)] = 8
    """Answers to each prompt."""
    max_new_tokens: Count = 32
    """Longest answer, end token included."""
    temperature: Bound = 1.0
    """Divides the logits when sampling; the ratio is taken at the same temperature."""
    learning_rate: Bound = 1e-3
    epochs: Count = 2
    """Passes over each batch."""
    minibatches: Count = 2
    """Gradient steps per pass."""
    clip: Annotated[float, Range("between 0 and 1", lambda value: 0 < value < 1)] = 0.2
    """Ratios outside 1 ± clip earn nothing more."""
    kl_coef: Limit = 0.01
    """Weight of the divergence from the reference policy."""
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation; False only subtracts its mean (Dr. GRPO)."""
    length_normalize: bool = True
    """Each answer weighs the same, whatever its length; False weighs each token the same."""
    max_grad_norm: Bound = 1.0
    row_length: int = 128
    """Tokens of a packed row."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class Answers:
    """Sampled sequences, prompt and answer together.

    Attributes:
        sequences: N sequences of token ids, each a list; the K answers of a prompt are neighbours.
        prompt_lengths: (N,) int64.
        log_probs: N lists, the sampling log-probability of each answer token.
    """

    sequences: tuple[tuple[int, ...], ...]
    prompt_lengths: tuple[int, ...]
    log_probs: tuple[tuple[float, ...], ...]

    def answer(self, index: int) -> tuple[int, ...]:
        """The answer tokens of one sequence."""
        return self.sequences[index][self.prompt_lengths[index] :]


@dataclass(frozen=True)
class GRPOStats:
    """What one update did."""

    loss: float
    kl: float
    clip_fraction: float
    grad_norm: float
    reward_mean: float
    flat_groups: float
    """Share of groups whose answers all earned the same, and which therefore teach nothing."""
    packing: float
    """Share of the computed tokens that were not padding."""


@dataclass(frozen=True)
class PackedRows:
    """Sequences laid end to end in rows.

    Attributes:
        tokens: (R, L) int64; 0 where there is no token.
        positions: (R, L) int64, place in the own sequence.
        segments: (R, L) int64, index of the sequence; `PAD_SEGMENT` where there is no token.
        rows, columns, owners: (M,) int64: where the M answer tokens are, and whose they are, in order of the sequences.
    """

    tokens: Tensor
    positions: Tensor
    segments: Tensor
    rows: Tensor
    columns: Tensor
    owners: Tensor

    @property
    def filled(self) -> float:
        """Share of the places that hold a token."""
        return float((self.segments != PAD_SEGMENT).float().mean())


def assign_rows(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Which sequences share a row: longest first, each into the first row with room."""
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        if length > row_length:
            raise UsageError(f"row_length {row_length} is shorter than a sequence of {length} tokens: raise it")
        for row, left in enumerate(room):
            if length <= left:
                rows[row].append(index)
                room[row] -= length
                break
        else:
            rows.append([index])
            room.append(row_length - length)
    return rows


def pack(sequences: Sequence[Sequence[int]], prompt_lengths: Sequence[int], row_length: int) -> PackedRows:
    """Lay sequences end to end in rows of `row_length` tokens."""
    rows = assign_rows([len(sequence) for sequence in sequences], row_length)
    shape = (len(rows), row_length)
    tokens, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    segments = np.full(shape, PAD_SEGMENT, np.int64)
    places: list[tuple[int, int, int]] = []
    for row, members in enumerate(rows):
        start = 0
        for index in members:
            stop = start + len(sequences[index])
            tokens[row, start:stop] = sequences[index]
            positions[row, start:stop] = np.arange(stop - start)
            segments[row, start:stop] = index
            places += [(index, row, column) for column in range(start + prompt_lengths[index], stop)]
            start = stop
    order = np.array(sorted(places), np.int64).reshape(-1, 3)
    arrays = (tokens, positions, segments, order[:, 1], order[:, 2], order[:, 0])
    return PackedRows(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))


def k3(log_probs: Tensor, reference_log_probs: Tensor) -> Tensor:
    """Per-token estimate of KL(policy ‖ reference), never negative (Schulman, 2020).

    Args:
        log_probs: (M,) float32 of the policy.
        reference_log_probs: (M,) float32 of the reference.

    Returns:
        (M,) float32.
    """
    difference = reference_log_probs - log_probs
    return torch.expm1(difference) - difference


def clipped_loss(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """PPO's clipped surrogate per token, to be minimised.

    Args:
        log_probs: (M,) float32 under the policy being trained.
        old_log_probs: (M,) float32 under the policy that sampled.
        advantages: (M,) float32, each token's own sequence's.
        clip: ratios outside 1 ± clip earn nothing more.

    Returns:
        (M,) float32.
    """
    ratio = torch.exp(log_probs - old_log_probs)
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


class GRPO:
    """Trains a token policy: `sample` answers, have them rewarded, `update`."""

    def __init__(self, policy: nn.Module, config: GRPOConfig, *, end_token: int, seed: int = 0) -> None:
        """Take a policy, `policy(tokens, positions, segments) -> logits`; its present weights become the reference."""
        self.policy = policy
        self.config = config
        self.end_token = end_token
        self.reference = copy.deepcopy(policy).eval().requires_grad_(False)
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=config.learning_rate)
        self._torch_rng = torch.Generator().manual_seed(seed)
        self._rng = np.random.default_rng(seed)

    @torch.no_grad()
    def sample(
        self, prompts: Sequence[Sequence[int]], *, group_size: int | None = None, greedy: bool = False
    ) -> Answers:
        """Answer each prompt `group_size` times.

        Args:
            prompts: G lists of token ids.
            group_size: answers per prompt; None is the configuration's.
            greedy: take the most probable token instead of drawing one.
        """
        times = group_size or self.config.group_size
        starts = [list(prompt) for prompt in prompts for _ in range(times)]
        lengths = torch.tensor([len(start) for start in starts])
        count, longest = len(starts), int(lengths.max())
        tokens = torch.zeros(count, longest + self.config.max_new_tokens, dtype=torch.int64)
        for row, start in enumerate(starts):
            tokens[row, : len(start)] = torch.tensor(start)
        every, rng = torch.arange(count), self._torch_rng
        log_probs = torch.zeros(count, self.config.max_new_tokens)
        ends = lengths.clone()
        going = torch.ones(count, dtype=torch.bool)
        for step in range(self.config.max_new_tokens):
            used = int(ends.max())
            # Padding comes after a row's last token, where causal attention does not look.
            logits = self.policy(tokens[:, :used], None, None)[every, ends - 1] / self.config.temperature
            scores = torch.log_softmax(logits, -1)
            chosen = scores.argmax(-1) if greedy else torch.multinomial(scores.exp(), 1, generator=rng)[:, 0]
            tokens[every[going], ends[going]] = chosen[going]
            log_probs[every[going], step] = scores[every, chosen][going]
            ends += going
            going &= chosen != self.end_token
            if not bool(going.any()):
                break
        return _as_answers(tokens, lengths, ends, log_probs)

    def log_probs(self, policy: nn.Module, packed: PackedRows) -> Tensor:
        """The log-probability of every answer token of `packed`, (M,) float32."""
        logits = policy(packed.tokens, packed.positions, packed.segments)
        before = logits[packed.rows, packed.columns - 1] / self.config.temperature
        chosen = packed.tokens[packed.rows, packed.columns]
        return torch.log_softmax(before, -1).gather(-1, chosen[:, None])[:, 0]

    def update(self, answers: Answers, rewards: NDArray[np.float32]) -> GRPOStats:
        """Learn from rewarded answers.

        Args:
            answers: N = G·K sequences from `sample`.
            rewards: (G, K) float32.
        """
        config = self.config
        rewards = np.ascontiguousarray(rewards, np.float32)
        if rewards.size != len(answers.sequences):
            raise UsageError(f"rewards has {rewards.size} entries for {len(answers.sequences)} answers")
        advantages = torch.from_numpy(group_advantages(rewards, normalize_std=config.normalize_std).reshape(-1))
        totals: list[tuple[float, float, float, float, float]] = []
        for _ in range(config.epochs):
            order = self._rng.permutation(len(answers.sequences))
            parts = np.array_split(order, min(config.minibatches, len(order)))
            totals += [self._step(answers, advantages, part.tolist()) for part in parts]
        loss, kl, clipped, norm, packing = np.mean(totals, axis=0).tolist()
        flat = float((np.ptp(rewards, axis=1) == 0).mean())
        return GRPOStats(loss, kl, clipped, norm, float(rewards.mean()), flat, packing)

    def _step(self, answers: Answers, advantages: Tensor, part: list[int]) -> tuple[float, float, float, float, float]:
        """Take one gradient step on some of the sequences."""
        config = self.config
        lengths = [answers.prompt_lengths[i] for i in part]
        packed = pack([answers.sequences[i] for i in part], lengths, config.row_length)
        old = torch.tensor([value for i in part for value in answers.log_probs[i]])
        with torch.no_grad():
            reference = self.log_probs(self.reference, packed)
        new = self.log_probs(self.policy, packed)
        divergence = k3(new, reference)
        surrogate = clipped_loss(new, old, advantages[part][packed.owners], config.clip)
        weights = self._weights(packed.owners, len(part))
        loss = ((surrogate + config.kl_coef * divergence) * weights).sum()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), config.max_grad_norm)
        self.optimizer.step()
        with torch.no_grad():
            clipped = (((new - old).exp() - 1).abs() > config.clip).float().mean()
            return float(loss), float(divergence.mean()), float(clipped), float(norm), packed.filled

    def _weights(self, owners: Tensor, sequences: int) -> Tensor:
        """The weight of each token; they add up to 1."""
        if not self.config.length_normalize:
            return torch.full((len(owners),), 1.0 / len(owners))
        counts = torch.bincount(owners, minlength=sequences)
        return 1.0 / (counts[owners] * sequences)


def _as_answers(tokens: Tensor, lengths: Tensor, ends: Tensor, log_probs: Tensor) -> Answers:
    rows, starts, stops = tokens.tolist(), lengths.tolist(), ends.tolist()
    scores = log_probs.tolist()
    return Answers(
        sequences=tuple(tuple(row[:stop]) for row, stop in zip(rows, stops, strict=True)),
        prompt_lengths=tuple(starts),
        log_probs=tuple(tuple(score[: stop - start]) for score, start, stop in zip(scores, starts, stops, strict=True)),
    )


# --- A small decoder-only transformer (torch) whose rows may hold several sequences, one after the other ---
@dataclass(frozen=True)
class TransformerConfig:
    """The shape of a transformer."""

    vocabulary: int
    """Number of tokens."""
    context: int
    """Longest sequence."""
    width: int = 64
    """Features of a token."""
    layers: int = 2
    heads: int = 4

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise UsageError(f"width {self.width} is not a multiple of heads {self.heads}")


class _Block(nn.Module):
    """Attention and a two-layer network, each after a norm and around a residual."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.before_attention = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.before_mlp = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        rows, length, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=visible is None)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Predicts each next token from the tokens of the same sequence before it."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, positions: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """The logits of the next token at every place.

        Args:
            tokens: (R, L) int64.
            positions: (R, L) int64, place of each token in its own sequence; None is 0 to L − 1.
            segments: (R, L) int64, which sequence of the row a token belongs to; None is one sequence per row. A token
                sees earlier tokens of its own segment only.

        Returns:
            logits (R, L, vocabulary) float32.
        """
        length = tokens.shape[1]
        if positions is None:
            positions = torch.arange(length, device=tokens.device).expand_as(tokens)
        visible = None
        if segments is not None:
            causal = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
            visible = (segments[:, :, None] == segments[:, None, :]) & causal
            visible = visible[:, None]
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x, visible)
        return self.head(self.norm(x))  # type: ignore[no-any-return]
