"""Links at distances that vary, and heads that find them or do not."""

import torch

LENGTH = 12


def one_hot(targets):
    """A head that gives all its weight to one key: (length, length)."""
    return torch.eye(LENGTH)[torch.tensor(targets)]


def varied_links(seed, causal=True):
    """A link from each query to one key at a distance that varies."""
    generator = torch.Generator().manual_seed(seed)
    links = []
    for query in range(1, LENGTH):
        choices = [key for key in range(query if causal else LENGTH) if key != query]
        chosen = int(torch.randint(len(choices), (), generator=generator))
        links.append((query, frozenset({choices[chosen]})))
    return links


def knowing(links):
    """Head 0 looks at the word before, head 1 at the right key, head 2 at all keys alike: (1, 3, length, length)."""
    right = [0] * LENGTH
    for query, keys in links:
        right[query] = min(keys)
    previous = [max(0, place - 1) for place in range(LENGTH)]
    uniform = torch.full((LENGTH, LENGTH), 1 / LENGTH)
    return torch.stack([one_hot(previous), one_hot(right), uniform])[None]


def ignorant(links):
    """The same without a head that knows the right key."""
    return knowing(links)[:, [0, 2, 2]]
