"""What the first page shows of a trained model of English: the words at which *it* looks, from a committed report."""

from html import escape
from typing import Any

from regard_lab.teaching import read_report

SPECIAL = ("[CLS]", "[SEP]", ".")  # a head that finds nothing puts its weight here
NOUNS = ("animal", "street")


def english_head() -> str:
    """Both sentences, the words shaded by the weights of one head of the model for *it*."""
    example = read_report("english").figures["it"]["example"]
    weights = example["weights"]
    largest = max(map(max, weights.values()))
    lines = ['<div class="try">']
    for adjective in weights:
        shown = words_with_weights(example, adjective)
        shaded = " ".join(_span(word, weight, weight / largest) for word, weight in shown)
        nouns = [(word, weight) for word, weight in shown if word in NOUNS]
        said = ", ".join(f"{word} {weight:.2f}" for word, weight in nouns)
        lines.append(f'<p class="source">{shaded}</p>')
        lines.append(f"<p>The weights of <em>it</em>: {said}</p>")
    lines += ["</div>", "", _measured()]
    return "\n".join(lines)


def _measured() -> str:
    """What was measured on many sentences of this kind."""
    figures = read_report("english").figures["it"]
    layer, head = figures["chosen"]
    return (
        f"This is head {layer}.{head} (layer {layer}, head {head}, counted from 0), chosen on other sentences. With an "
        f"adjective of one noun, the weight of *it* moves towards that noun in {figures['moved']:.0%} of "
        f"{figures['pairs']} pairs of nouns. The right noun has the larger weight of the two in "
        f"{figures['referent_first']:.0%} of {figures['sentences']:,} sentences; always choosing the "
        f"same one of both nouns is right in {figures['offset']:.0%}."
    )


def words_with_weights(example: dict[str, Any], adjective: str) -> list[tuple[str, float]]:
    """The words of the sentence with this adjective; pieces of a word are joined, and their weights added."""
    words: list[tuple[str, float]] = []
    joins = False
    for piece, weight in zip(example["words"], example["weights"][adjective], strict=True):
        if piece in SPECIAL:
            continue
        if words and (joins or piece == "'"):
            word, before = words[-1]
            words[-1] = (word + piece, before + weight)
        else:
            words.append((adjective if piece in example["weights"] else piece, weight))
        joins = piece == "'"
    return words


def _span(word: str, weight: float, share: float) -> str:
    bold = f"<strong>{escape(word)}</strong>" if word == "it" else escape(word)
    return f'<span style="--share: {share:.2f}" title="{weight:.3f}">{bold}</span>'
