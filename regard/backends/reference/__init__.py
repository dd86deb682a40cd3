"""Every mechanism as its formula: slow, complete, and what every other backend answers to.

One file a mechanism, each beside the equation of its paper; `backend.py` lists them.
"""

from regard.backends.reference.backend import Reference

__all__ = ["Reference"]
