"""LSH attention in plain loops, one head at a time: from the paper and the rule of `LSH` alone."""

import numpy as np

Array = np.ndarray


def buckets(x: Array, rotation: Array) -> list[int]:
    """h(x) = argmax([x R; -x R]), section 2, "Locality sensitive hashing"."""
    return [int(np.argmax(np.concatenate([row @ rotation, -(row @ rotation)]))) for row in x]


def seen(
    x: Array, rotations: list[Array], chunk: int, causal: bool, live: list[bool]
) -> list[set[int]]:
    """Which positions each position attends to."""
    alive = [i for i in range(len(x)) if live[i]]
    found: list[set[int]] = [set() for _ in x]
    for rotation in rotations:
        h = buckets(x, rotation)
        if causal:
            place = {i: [j for j in alive if h[j] == h[i]].index(i) for i in alive}
        else:
            place = {i: s for s, i in enumerate(sorted(alive, key=lambda j: (h[j], j)))}
        for i in alive:
            found[i] |= {
                j for j in alive if h[i] == h[j] and place[i] // chunk - place[j] // chunk in (0, 1)
            }
    for rank, i in enumerate(alive):
        if (causal and rank < chunk) or len(alive) <= chunk:
            found[i] |= set(alive)
    for i in alive:
        found[i] = {j for j in found[i] if j < i or (j > i and not causal)} or {i}
    return found


def attend(x: Array, v: Array, sees: list[set[int]], scale: float) -> tuple[Array, Array]:
    """Output (length, v_dim) and log-sum-exp (length,); zeros and -inf where nobody is seen."""
    output = np.zeros((len(x), v.shape[1]))
    log_sum_exp = np.full(len(x), -np.inf)
    for i, js in enumerate(sees):
        if js:
            e = {j: np.exp(scale * (x[i] @ x[j]) / np.sqrt(x[j] @ x[j])) for j in js}
            output[i] = sum(e[j] * v[j] for j in js) / sum(e.values())
            log_sum_exp[i] = np.log(sum(e.values()))
    return output, log_sum_exp
