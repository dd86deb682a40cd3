"""A small task is learned: texts of 3 to 6 symbols are said backwards."""

import torch
import torch.nn.functional as F

from regard_lab.models import RecurrentTranslator
from regard_lab.text import BEGIN, END, PAD
from regard_lab.text.batches import pad


def reversals(count, generator):
    texts = []
    for _ in range(count):
        length = int(torch.randint(3, 7, (), generator=generator))
        texts.append(torch.randint(4, 12, (length,), generator=generator).tolist())
    backwards = [text[::-1] for text in texts]
    following = pad([[*text, END] for text in backwards])
    return pad([[*text, END] for text in texts]), pad([[BEGIN, *text] for text in backwards]), following


def test_bahdanau_learns_to_say_texts_backwards():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = RecurrentTranslator(RecurrentTranslator.Config(vocab_size=12, dim=32, hidden=32, dropout=0.0))
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(220):
        source, target, following = reversals(32, generator)
        loss = F.cross_entropy(model(source, target).flatten(0, 1), following.flatten(), ignore_index=PAD)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    source, target, following = reversals(200, torch.Generator().manual_seed(1))
    with torch.inference_mode():
        right = (model(source, target).argmax(-1) == following) | (following == PAD)
    assert float(right.all(1).float().mean()) >= 0.85
