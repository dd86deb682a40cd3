"""What is added to scores by distance: no q_len x k_len copy is ever made of it.

A declaration without parameters (`ALiBi`) is equal to its like; one that learns (`T5Relative`) is a module.
"""

from regard.bias.alibi import ALiBi
from regard.bias.base import Bias
from regard.bias.t5 import T5Relative

__all__ = ["ALiBi", "T5Relative", "Bias"]
