"""What is drawn by counting, in NumPy: the hash behind dropout and `RandomBlocks`, written from its description."""

import numpy as np

_ROW = 0x9E3779B97F4A7C15
_HEAD = 0xC2B2AE3D27D4EB4F
_QUERY = 0x165667B19E3779F9
_KEY = 0x85EBCA77C2B2AE63
_BLOCK = _ROW
_STEP = _HEAD


def mixed(state: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele et al. 2014, figure 16), in unsigned 64 bits."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def unsigned(numbers: np.ndarray) -> np.ndarray:
    return np.asarray(numbers).astype(np.int64).view(np.uint64)


def draw(seed: int, block: int, step: int, choices: int) -> int:
    """The `step`-th number below `choices` that a block of queries draws."""
    state = mixed(np.array([((block + 1) * _BLOCK + seed) % 2**64], np.uint64))
    state = mixed(state + np.uint64((step + 1) * _STEP % 2**64))
    return (int(state[0]) >> 32) * choices >> 32


def distinct(count: int, seed: int, block: int, choices: int) -> set[int]:
    """`count` distinct numbers below `choices` (Floyd's sampling), or all of them where there are no more."""
    if choices <= count:
        return set(range(choices))
    chosen: set[int] = set()
    for step in range(count):
        top = choices - count + step
        number = draw(seed, block, step, top + 1)
        chosen.add(top if number in chosen else number)
    return chosen


def kept_weights(
    dropout: float, seed: int, batch: int, heads: int, q_pos: np.ndarray, k_pos: np.ndarray
) -> np.ndarray:
    """Which weights dropout keeps, (batch, heads, q_len, k_len); q_pos (batch or 1, 1, q_len, 1), k_pos (k_len,)."""
    counters = (
        (np.arange(batch).reshape(-1, 1, 1, 1), _ROW),
        (np.arange(heads).reshape(1, -1, 1, 1), _HEAD),
        (q_pos, _QUERY),
        (k_pos.reshape(1, 1, 1, -1), _KEY),
    )
    state = np.full((1, 1, 1, 1), seed % 2**64, np.uint64)
    for counter, stride in counters:
        state = mixed(state + (unsigned(counter) + np.uint64(1)) * np.uint64(stride))
    return (state >> np.uint64(11)) >= np.uint64(int(dropout * 2**53))
