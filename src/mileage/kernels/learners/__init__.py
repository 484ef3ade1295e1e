"""What learns: networks in flat vectors, their gradients, optimizers, and the fused updates of the algorithms."""
