"""Where long work tells how far it is."""

from collections.abc import Callable

Tell = Callable[[str], None]
"""A function that receives each remark, one sentence at a time."""


def silent(remark: str) -> None:
    """The default of `tell`: ignore the remark."""
