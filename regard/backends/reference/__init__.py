"""The reference backend: every mechanism computed by its formula, with every option; other backends must agree with it.

There is one file for each mechanism, which cites the equation of its paper; `backend.py` lists them.
"""

from regard.backends.reference.backend import Reference

__all__ = ["Reference"]
