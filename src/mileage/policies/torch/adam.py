"""Adam with gradient clipping, whose state can be put into a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Adam:
    """Clips gradients to a global norm and takes Adam steps, in one fused kernel where the device has one."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], *, eps: float, name: str = "adam") -> None:
        self._named = dict(parameters)
        self._name = name
        self.steps = 0
        self._inner = torch.optim.Adam(self._named.values(), lr=0.0, eps=eps, fused=True)
        # Made now and not at the first step, so that a checkpoint can be read into it.
        for parameter in self._named.values():
            self._inner.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }

    def step(self, loss: Tensor, rate: float, max_norm: float, *, measured: bool = False) -> Tensor:
        """One step of length `rate` down the gradient of `loss`.

        Returns the gradient's norm before clipping; 0 if there is no limit and it is not to be `measured`.
        """
        parameters = list(self._named.values())
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        if max_norm > 0.0:
            norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        else:
            norm = torch.nn.utils.clip_grad_norm_(parameters, torch.inf) if measured else torch.zeros(())
        self._inner.param_groups[0]["lr"] = rate
        self._inner.step()
        self.steps += 1
        for parameter in parameters:
            parameter.grad = None
        return norm

    def tensors(self) -> dict[str, Tensor]:
        """The moments by name."""
        state = self._inner.state
        means = {f"{self._name}_mean.{name}": state[each]["exp_avg"] for name, each in self._named.items()}
        return means | {f"{self._name}_square.{name}": state[each]["exp_avg_sq"] for name, each in self._named.items()}

    def set_steps(self, steps: int) -> None:
        """Go on after `steps` steps."""
        self.steps = steps
        for each in self._inner.state.values():
            each["step"].fill_(steps)
