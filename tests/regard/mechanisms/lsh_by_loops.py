"""LSH attention in plain loops, one head at a time: from the paper and the rule of `LSH` alone."""

import numpy as np

Array = np.ndarray


def hashes(x: Array, rotation: Array) -> list[int]:
    """h(x) = argmax([x R; -x R]), section 2, "Locality sensitive hashing"."""
    numbers = []
    for vector in x:
        rotated = vector @ rotation
        numbers.append(int(np.argmax(np.concatenate([rotated, -rotated]))))
    return numbers


def sorted_places(h: list[int], visible: list[int], causal: bool) -> dict[int, int]:
    """The place of each visible position in order of (hash, position); if causal, within its bucket."""
    order = sorted(visible, key=lambda i: (h[i], i))
    if not causal:
        return {i: place for place, i in enumerate(order)}
    places = {}
    for i in visible:
        bucket = [j for j in order if h[j] == h[i]]
        places[i] = bucket.index(i)
    return places


def allowed_keys(
    x: Array, rotations: list[Array], chunk: int, causal: bool, is_visible: list[bool]
) -> list[set[int]]:
    """Which positions each position attends to."""
    visible = [i for i in range(len(x)) if is_visible[i]]
    keys: list[set[int]] = [set() for _ in x]
    for rotation in rotations:
        h = hashes(x, rotation)
        places = sorted_places(h, visible, causal)
        for i in visible:
            for j in visible:
                chunks_back = places[i] // chunk - places[j] // chunk
                if h[i] == h[j] and chunks_back in (0, 1):
                    keys[i].add(j)
    for rank, i in enumerate(visible):
        if (causal and rank < chunk) or len(visible) <= chunk:
            keys[i] |= set(visible)

    for i in visible:
        others = keys[i] - {i}
        if causal:
            others = {j for j in others if j < i}
        keys[i] = others or {i}  # its own position only where there is no other
    return keys


def attend(x: Array, v: Array, keys: list[set[int]], scale: float) -> tuple[Array, Array]:
    """Output (length, v_dim) and log-sum-exp (length,); zeros and -inf for a position without keys."""
    output = np.zeros((len(x), v.shape[1]))
    log_sum_exp = np.full(len(x), -np.inf)
    for i, own_keys in enumerate(keys):
        if not own_keys:
            continue
        total = 0.0
        weighted = np.zeros(v.shape[1])
        for j in own_keys:
            unit_key = x[j] / np.sqrt(x[j] @ x[j])
            weight = np.exp(scale * (x[i] @ unit_key))
            total += weight
            weighted += weight * v[j]
        output[i] = weighted / total
        log_sum_exp[i] = np.log(total)
    return output, log_sum_exp
