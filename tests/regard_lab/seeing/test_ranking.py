import pytest
import torch
from small_translator import random_maps

from regard.errors import ArgumentError
from regard_lab.seeing import AttentionMaps, looked_at, tell_look


def by_hand():
    words = ("the", "animal", "it", "the", "<end>")
    rows = torch.full((1, 2, 5, 5), 0.2)
    rows[0, 1, 2] = torch.tensor([0.05, 0.2, 0.5, 0.05, 0.2])
    return AttentionMaps(words, ("das", "<end>"), rows, torch.ones(1, 2, 2, 2) / 2, rows[:, :, :2])


def test_words_are_ranked_by_weight_and_equal_ones_stay_in_order():
    ranked = looked_at(by_hand(), "it", head=1)
    assert [word for word, _ in ranked] == ["it", "animal", "<end>", "the", "the"]
    assert [round(weight, 3) for _, weight in ranked] == [0.5, 0.2, 0.2, 0.05, 0.05]


def test_a_word_is_found_in_any_case_or_by_its_place():
    assert looked_at(by_hand(), "IT", head=1) == looked_at(by_hand(), 2, head=1)


def test_the_told_sentence_leaves_the_word_itself_out_and_names_the_truth():
    told = tell_look(by_hand(), "it", head=1, referent="animal", count=2)
    assert told == "*it* looked most at animal (0.20), <end> (0.20); true referent: animal"
    assert "referent" not in tell_look(by_hand(), "it")


def test_a_referent_that_no_head_of_the_layer_sees_is_told():
    maps = by_hand()
    maps.encoder[0, 0, 2, 1] = 0.0
    assert tell_look(maps, "it", referent="animal").endswith("; true referent: animal")  # one head sees it
    maps.encoder[0, 1, 2, 1] = 0.0
    assert tell_look(maps, "it", head=1, referent="animal").endswith(
        "; true referent: animal, unseen by every head of this layer"
    )


def test_the_decoder_is_told_by_what_it_writes_and_had_read():
    maps = random_maps(["a", "<end>"], ["x", "y", "<end>"])
    assert tell_look(maps, "x", kind="decoder", count=1) == "*x* looked most at <begin> (1.00)"
    assert [word for word, weight in looked_at(maps, 0, kind="decoder") if weight] == ["<begin>"]


def test_control_characters_cannot_reach_the_terminal():
    maps = random_maps(["a\x1b[2J", "<end>"], ["x", "<end>"])
    assert "\x1b" not in tell_look(maps, 1)


def test_an_unknown_word_is_refused_with_those_there_are():
    with pytest.raises(ArgumentError, match="called 'they'; there are the animal it the <end>"):
        looked_at(by_hand(), "they")
    with pytest.raises(ArgumentError, match="word 5 does not exist; the encoder rows are words 0 to 4"):
        looked_at(by_hand(), 5)


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_count_of_words_is_a_whole_number_of_at_least_1(count):
    with pytest.raises(ArgumentError, match="count"):
        tell_look(by_hand(), "it", count=count)
