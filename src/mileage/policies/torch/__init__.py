"""Policies of any `torch.nn.Module`, with what engines, evaluation and `predict` ask of a policy."""
