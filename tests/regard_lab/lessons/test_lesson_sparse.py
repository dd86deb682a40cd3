import pytest
import torch
from teaching import failing, starting

from regard.functional import attention
from regard.patterns import Causal, CausalWindow, Full, RandomBlocks, SlidingWindow
from regard_lab.lessons import sparse


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(sparse, "LAYERED", (64, 144))


def layers_by_walking(pattern, length):
    """Layers until all pairs that the pattern's order permits are connected, by following edges one layer at a time."""
    looks = [{key for key in range(length) if pattern.dense(length, length)[query, key]} for query in range(length)]
    wanted = [set(range(query + 1 if pattern.reach().ahead == 0 else length)) for query in range(length)]
    reached, layers = [{query} for query in range(length)], 0
    while any(reached[query] < wanted[query] for query in range(length)):
        new = [reached[query].union(*(reached[key] for key in looks[query])) for query in range(length)]
        if new == reached:
            return None
        reached, layers = new, layers + 1
    return layers


@pytest.mark.parametrize("name", sparse.patterns(16, 0))
def test_layers_are_those_of_a_walk_along_the_pairs(name):
    pattern = sparse.patterns(16, 3)[name]
    assert sparse._layers(pattern, 16) == layers_by_walking(pattern, 16)


def test_a_pattern_that_never_connects_all_is_reported_so():
    assert sparse._layers(SlidingWindow(1), 8) is None
    assert sparse._layers(CausalWindow(3), 16) == 8


def test_two_layers_are_the_product_of_one_with_itself():
    one, two = sparse.reached(RandomBlocks(2, block=1, seed=5), 12, 2)
    step = one | torch.eye(12, dtype=torch.bool)
    assert all(
        two[i, j] == any(step[i, via] and step[via, j] for via in range(12)) for i in range(12) for j in range(12)
    )


def test_a_pattern_that_attention_ignores_is_seen(monkeypatch):
    monkeypatch.setattr(sparse, "attention", lambda q, k, v, pattern: attention(q, k, v))
    assert starting(failing("sparse"), "Sparse attention gives")


def test_a_stride_that_keeps_all_pairs_is_seen(monkeypatch):
    monkeypatch.setattr(sparse, "Strided", lambda stride: Full())
    assert starting(failing("sparse"), "Strided and fixed keep", "4 times as many", "Two layers suffice")


def test_a_stride_that_does_not_grow_is_seen(monkeypatch):
    real = sparse.Fixed
    monkeypatch.setattr(sparse, "Fixed", lambda stride: real(4))
    assert starting(failing("sparse"), "Strided and fixed keep", "4 times as many")


def test_a_window_that_looks_back_alone_is_seen(monkeypatch):
    monkeypatch.setattr(sparse, "SlidingWindow", lambda size: SlidingWindow(size) & Causal())
    assert starting(failing("sparse"), "A window keeps")


def test_a_window_with_fewer_neighbours_is_seen(monkeypatch):
    monkeypatch.setattr(sparse, "SlidingWindow", lambda size: SlidingWindow(size - 2))
    assert starting(failing("sparse"), "A window keeps", "A window alone needs")


def test_random_words_among_which_is_every_word_are_seen(monkeypatch):
    monkeypatch.setattr(sparse, "RandomBlocks", lambda count, **options: RandomBlocks(5 * count, **options))
    assert starting(failing("sparse"), "Random words alone never connect")


def test_random_words_that_are_missing_are_seen(monkeypatch):
    monkeypatch.setattr(sparse, "RandomBlocks", lambda count, block, seed: SlidingWindow(1))
    assert starting(failing("sparse"), "With 3 random words")


def test_a_wrong_count_is_seen(monkeypatch):
    real = sparse.kept
    monkeypatch.setattr(sparse, "kept", lambda pattern, length: real(pattern, length) + 1)
    assert starting(failing("sparse"), "The counts are", "A window keeps", "4 times as many")
