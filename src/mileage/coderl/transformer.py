"""A small decoder-only transformer (torch) whose rows may hold several sequences, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from mileage._errors import UsageError


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
