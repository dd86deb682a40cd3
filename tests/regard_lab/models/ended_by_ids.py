"""A function that ends texts, for searches that may write several ids before they ask it."""

from collections.abc import Sequence


class EndedByIds:
    """Ends texts by their last id, and notes when it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, tuple[int, ...]]] = []

    def __call__(self, number: int, ids: Sequence[int]) -> bool:
        self.asked.append((number, tuple(ids)))
        return len(ids) > 2 * number + 3 and ids[-1] % 3 == 0
