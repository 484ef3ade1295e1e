"""Adam with gradient clipping, whose state can be put into a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

_BETA1, _BETA2 = 0.9, 0.999


class Adam:
    """Clips gradients to a global norm and takes Adam steps, all parameters in one fused call.

    This is the call that `torch.optim.Adam(fused=True)` makes, without importing torch's compiler on the way, which
    takes longer than learning a small task.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], *, eps: float, name: str = "adam") -> None:
        self._names, self._parameters = list(parameters), list(parameters.values())
        self._eps, self._name = eps, name
        self.steps = 0
        self._means = [torch.zeros_like(each, memory_format=torch.preserve_format) for each in self._parameters]
        self._squares = [torch.zeros_like(each, memory_format=torch.preserve_format) for each in self._parameters]
        self._counts = [torch.zeros((), device=each.device) for each in self._parameters]

    def step(self, loss: Tensor, rate: float, max_norm: float, *, measured: bool = False) -> Tensor:
        """One step of length `rate` down the gradient of `loss`.

        Returns the gradient's norm before clipping; 0 if there is no limit and it is not to be `measured`.
        """
        return self.descend(self.gradients(loss), rate, max_norm, measured=measured)

    def gradients(self, loss: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of `loss` by the parameters; None where it does not depend on one."""
        return torch.autograd.grad(loss, self._parameters, allow_unused=True)

    @torch.no_grad()
    def descend(
        self, gradients: Sequence[Tensor | None], rate: float, max_norm: float, *, measured: bool = False
    ) -> Tensor:
        """As `step`, with gradients that are known already; they are overwritten."""
        used = [index for index, each in enumerate(gradients) if each is not None]
        slopes = [each for each in gradients if each is not None]
        norm = torch.zeros(())
        if max_norm > 0.0 or measured:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(slopes)))
        if max_norm > 0.0:
            torch._foreach_mul_(slopes, (max_norm / (norm + 1e-6)).clamp(max=1.0))
        counts = [self._counts[index] for index in used]
        torch._foreach_add_(counts, 1.0)
        torch._fused_adam_(
            [self._parameters[index] for index in used], slopes, [self._means[index] for index in used],
            [self._squares[index] for index in used], [], counts, lr=rate, beta1=_BETA1, beta2=_BETA2, weight_decay=0.0,
            eps=self._eps, amsgrad=False, maximize=False,
        )  # fmt: skip
        self.steps += 1
        return norm

    def tensors(self) -> dict[str, Tensor]:
        """The moments by name."""
        means = {f"{self._name}_mean.{name}": each for name, each in zip(self._names, self._means, strict=True)}
        squares = {f"{self._name}_square.{name}": each for name, each in zip(self._names, self._squares, strict=True)}
        return means | squares

    def set_steps(self, steps: int) -> None:
        """Go on after `steps` steps."""
        self.steps = steps
        for each in self._counts:
            each.fill_(steps)


def added(gradients: Sequence[tuple[Tensor | None, ...]]) -> tuple[Tensor | None, ...]:
    """The sum of the gradients of several pieces, in their order; the first ones are overwritten."""
    # A parameter is either part of every piece or of none.
    sums = [each for each in gradients[0] if each is not None]
    for other in gradients[1:]:
        torch._foreach_add_(sums, [each for each in other if each is not None])
    return gradients[0]
