"""The order in which texts are validated on."""

from collections.abc import Sequence


def in_order(texts: Sequence[list[int]], budget: int) -> list[list[int]]:
    """Indices of texts, neighbours in length together, within a budget of ids; a text above it stands alone.

    >>> in_order([[1] * 5, [1] * 2, [1] * 3], 6)
    [[1, 2], [0]]
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(texts)), key=lambda at: len(texts[at])):
        if groups and (len(groups[-1]) + 1) * len(texts[index]) <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups
