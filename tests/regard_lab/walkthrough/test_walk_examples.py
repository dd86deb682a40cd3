"""The worked example of the articles, to four decimals; weights that are given; draws and sizes."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from walk_cases import SENTENCE, given

from regard.errors import ArgumentError, CheckpointError
from regard_lab.walkthrough import example, walk
from regard_lab.walkthrough.layer import read_weights
from regard_lab.walkthrough.steps import split_words

# "Life is short, eat dessert first" as articles print it; float32 draws of torch's generator are the same everywhere.
IDS = [0, 4, 5, 2, 1, 3]
SCORES = [8.5808, -7.6597, 3.2558, 1.0395, 11.1466, -0.4800]
WEIGHTS = [0.2912, 0.0106, 0.0982, 0.0625, 0.4917, 0.0458]
CONTEXT = [-1.5993, 0.0156, 1.2670, 0.0032, -0.6460, -1.1407]


def test_life_is_short_gives_the_numbers_of_the_articles_and_of_their_code():
    walkthrough = walk(**example("life-is-short"))
    assert walkthrough.words == ("Life", "is", "short", "eat", "dessert", "first")
    assert walkthrough.chosen == "is"
    assert walkthrough["ids"].tolist() == IDS
    assert walkthrough["omega"].tolist() == pytest.approx(SCORES, abs=1e-4)
    assert walkthrough["alpha"].tolist() == pytest.approx(WEIGHTS, abs=1e-4)
    assert walkthrough["z"].tolist()[:6] == pytest.approx(CONTEXT, abs=1e-4)
    torch.manual_seed(123)
    x = torch.nn.Embedding(6, 16)(torch.tensor(IDS)).detach()
    torch.manual_seed(123)
    query = torch.rand(24, 16)
    key = torch.rand(24, 16)
    value = torch.rand(28, 16)
    omega = (key @ x.T).T @ (query @ x[1])
    z = torch.softmax(omega / 24**0.5, dim=0) @ (value @ x.T).T
    torch.testing.assert_close(walkthrough["z"].float(), z, rtol=0, atol=1e-4)


def test_words_without_punctuation():
    assert split_words("Eat, sleep… it's 3€!", "letters") == ["Eat", "sleep", "it's", "3"]
    assert walk(SENTENCE, words="letters").words == tuple(SENTENCE.replace(",", "").split())
    with pytest.raises(ArgumentError, match="has no words"):
        walk("?!", words="letters")
    with pytest.raises(ArgumentError, match="there are all, letters"):
        walk(SENTENCE, words="some")
    with pytest.raises(ArgumentError, match="the text is a list of words"):
        walk(["a", "b"], words="letters")


def test_given_weights_are_used_and_the_others_are_drawn():
    plain = walk(SENTENCE, heads=1)
    drawn = walk(SENTENCE, heads=1, seed=9)
    names = ("table", "W_q", "W_k", "W_v", "W_o")
    weights = {name: given(drawn)[name] for name in names}
    weights["W_q"] = weights["W_q"][0]  # a matrix of one head needs no axis for heads
    walkthrough = walk(SENTENCE, heads=1, weights=weights)
    torch.testing.assert_close(walkthrough["output"], drawn["output"], rtol=0, atol=1e-12)
    assert all(
        parameter.says.endswith("given")
        for parameter in walkthrough.given
        if parameter.name in names
    )
    part = walk(SENTENCE, heads=1, weights={"W_v": weights["W_v"]})
    torch.testing.assert_close(part["alpha"], plain["alpha"])
    torch.testing.assert_close(part["v"], plain["x"] @ weights["W_v"][0].T)


def test_a_file_of_weights_is_read_and_a_wrong_one_is_one_sentence(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({"W_v": torch.ones(2, 4, 8, dtype=torch.float16)}, path)
    walkthrough = walk(SENTENCE, weights=read_weights(path))
    assert bool((walkthrough["v"] == walkthrough["x"].sum(1, keepdim=True)).all())
    path.write_bytes(b"no tensors")
    with pytest.raises(
        CheckpointError, match=r"weights\.safetensors cannot be read as safetensors"
    ):
        read_weights(path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_weights(tmp_path / "nothing.safetensors")


def test_each_step_has_its_seed_and_its_law():
    reseeded = walk(SENTENCE, weights_seed=5)
    same = walk(SENTENCE, weights_seed=5)
    assert torch.equal(reseeded["output"], same["output"])
    assert torch.equal(reseeded["x"], walk(SENTENCE)["x"])
    assert not torch.allclose(given(reseeded)["W_q"], given(walk(SENTENCE))["W_q"])
    assert torch.equal(given(reseeded)["W_q"], given(walk(SENTENCE, seed=8, weights_seed=5))["W_q"])
    uniform = np.concatenate(
        [given(walk(SENTENCE, draw="uniform", dim=64))[f"W_{x}"].flatten() for x in "qkvo"]
    )
    assert uniform.min() >= 0
    assert uniform.max() <= 1
    assert uniform.mean() == pytest.approx(0.5, abs=0.02)
