"""Models with heads whose answers are known: an induction circuit among heads of noise."""

import torch

from regard_lab.models import LanguageModel

PLACES = 32
HEADS = 4


def induction_model(previous, induction, seed=0, noise=0.02, vocab=24):
    """A language model of two layers that continues what it has read before.

    Head `previous` of layer 0 looks at the word before and writes it beside the word; head `induction` of layer 1 looks
    for its own word there, and writes the word that it finds. A vector is a word, its position, and the word before it.
    """
    dim = vocab + PLACES + vocab
    head_dim = max(vocab, PLACES)
    config = LanguageModel.Config(
        vocab_size=vocab,
        dim=dim,
        layers=2,
        heads=HEADS,
        head_dim=head_dim,
        hidden_dim=8,
        positions="learned",
        max_length=PLACES,
        norm="rms",
    )

    def rows(head, size):
        return slice(head_dim * head, head_dim * head + size)

    torch.manual_seed(seed)
    model = LanguageModel(config).double().eval()
    word = slice(0, vocab)
    place = slice(vocab, vocab + PLACES)
    before = slice(vocab + PLACES, dim)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "to_" in name or ("feed_forward" in name and "norm" not in name):
                weight.normal_().mul_(noise)
        model.embedding.weight.zero_()[:, word] = torch.eye(vocab).double()
        model.positions.weight.zero_()[:, place] = torch.eye(PLACES).double()
        first, second = (block.attention for block in model.blocks)
        for layer, head in ((first, previous), (second, induction)):
            for projection in (layer.to_q, layer.to_k, layer.to_v):
                projection.weight[rows(head, head_dim)] = 0
            layer.to_output.weight[:, rows(head, head_dim)] = 0
            layer.to_v.weight[rows(head, vocab), word] = torch.eye(vocab).double()
        place_before = torch.eye(PLACES).double().roll(-1, 0)
        first.to_q.weight[rows(previous, PLACES), place] = 60 * place_before
        first.to_k.weight[rows(previous, PLACES), place] = torch.eye(PLACES).double()
        first.to_output.weight[before, rows(previous, vocab)] = torch.eye(vocab).double()
        second.to_q.weight[rows(induction, vocab), word] = 60 * torch.eye(vocab).double()
        second.to_k.weight[rows(induction, vocab), before] = torch.eye(vocab).double()
        second.to_output.weight[word, rows(induction, vocab)] = 3 * torch.eye(vocab).double()
    return model
