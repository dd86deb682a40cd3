"""What is added to scores by distance: no q_len x k_len copy is ever made of it."""

from regard.bias.base import Bias

__all__ = ["Bias"]
