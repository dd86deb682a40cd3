"""The reference backend: every mechanism computed by its formula, with every option; other backends must agree with it.

The formula of softmax, with every option, is here; other mechanisms have their formula in their own file.
"""

from regard.backends.reference.backend import Reference

__all__ = ["Reference"]
