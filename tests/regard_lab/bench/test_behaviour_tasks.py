"""The texts of `benchmarks/behaviour`: what they ask is what their answers answer."""

import pytest
import torch

from benchmarks.behaviour.learning import UNSCORED, Draw, duplication, overwriting, recall

DRAWS = {
    "duplication": duplication(symbols=5, length=7, rows=3),
    "recall": recall(vocabulary=22, length=31, rows=3, pairs=5),
    "overwriting": overwriting(vocabulary=22, length=31, rows=3, keys=3, writes=4),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_batch_depends_on_the_seed_alone(name: str):
    def drawn(seed: int) -> torch.Tensor:
        return torch.stack(DRAWS[name](torch.Generator().manual_seed(seed)))

    assert torch.equal(drawn(3), drawn(3))
    assert not torch.equal(drawn(3), drawn(4))


def test_the_second_word_is_the_first_and_alone_is_scored():
    tokens, targets = first_of(DRAWS["duplication"])
    assert (tokens[:, [0, 8]] == 0).all()
    assert torch.equal(targets[:, 8:], tokens[:, 1:8])
    assert (targets[:, :8] == UNSCORED).all()


def test_a_key_that_returns_is_answered_by_its_value():
    tokens, targets = first_of(DRAWS["recall"])
    for text, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
        value_of = dict(zip(text[:10:2], text[1:10:2], strict=True))
        answers = {key: value for key, value in zip(text, wanted, strict=True) if value != UNSCORED}
        assert answers == value_of
        assert len(value_of) == 5


def test_a_key_that_was_written_again_is_answered_by_its_last_value():
    tokens, targets = first_of(DRAWS["overwriting"])
    for text, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
        written = text[:24:2]
        last = dict(zip(text[:24:2], text[1:24:2], strict=True))
        assert sorted(map(written.count, last)) == [4, 4, 4]
        assert {
            key: value for key, value in zip(text, wanted, strict=True) if value != UNSCORED
        } == last


def first_of(draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    return draw(torch.Generator().manual_seed(5))
