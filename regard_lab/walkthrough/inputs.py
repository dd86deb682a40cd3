"""From text to vectors: the words of a sentence, or the sub-words of a trained model, as ids and as vectors."""

from collections.abc import Sequence

from regard_lab.models import TranslationTransformer
from regard_lab.models.language import Stack
from regard_lab.text import Tokeniser
from regard_lab.walkthrough.layer import Drawn
from regard_lab.walkthrough.steps import Axis, Walker, check_words, find_word

Text = str | Sequence[str]


def split_texts(
    walker: Walker, text: Text, context: Text | None, words: Axis, seen: Axis | None, kept: str
) -> str:
    """Add the steps that split the texts into words (`kept`: a kind of `UNITS`); return an expression of all words."""
    _split(walker, "", "text", text, words, kept)
    if seen is None:
        return "set(words)"
    _split(walker, "context_", "context", context or (), seen, kept)
    return "{*words, *context_words}"


def _split(walker: Walker, prefix: str, what: str, text: Text, words: Axis, kept: str) -> None:
    """Add the step that splits one of the texts; a list of words is taken as it stands."""
    if isinstance(text, str):
        walker.give(what, text, f"the {what}")
        cut = f"split_words({what})" if kept == "all" else f'split_words({what}, "{kept}")'
    else:
        walker.give(what, list(text), f"the {what}")
        cut = f"list({what})"
    title = "Words of the context" if prefix else "Words"
    and_signs = " and punctuation" if kept == "all" else "; punctuation is dropped"
    says = f"The {what} is split into words{and_signs}. Attention compares these units."
    walker.step(f"{prefix}words = {cut}", title, says, axes=(words,))


def number_words(walker: Walker, every: str, drawn: Drawn, words: Axis, seen: Axis | None) -> None:
    """Add the steps that number the words among `every` word."""
    origin = drawn.origin("table")
    says = f"a vector for each word of the vocabulary, {origin}"
    walker.give("table", drawn.table, says, "words × vector size")

    different = {*words.labels}
    texts = "the text"
    if seen is not None:
        different.update(seen.labels)
        texts = "the text and of the context"
    vocabulary = Axis("words", tuple(sorted(different)))
    says = f"Every different word, sorted. A trained model has a vocabulary; this one consists of the words of {texts}."
    walker.step(f"vocabulary = sorted({every})", "Vocabulary", says, axes=(vocabulary,))

    _number(walker, "", "Ids", words)
    if seen is not None:
        _number(walker, "context_", "Ids of the context", seen)


def _number(walker: Walker, prefix: str, title: str, words: Axis) -> None:
    """Add the step that numbers the words of one of the texts."""
    line = f"{prefix}ids = torch.tensor([vocabulary.index(word) for word in {prefix}words])"
    says = "The index of each word in the vocabulary, from 0."
    walker.step(line, title, says, axes=(words,), scale="none")


def embed_words(walker: Walker, prefix: str, words: Axis, positions: str) -> str:
    """Add the steps from `{prefix}ids` to vectors, with sinusoidal positions if requested; return their name."""
    dim = walker.values["table"].shape[1]
    x = "c" if prefix else "x"
    of_context = " of the context" if prefix else ""
    embeddings = x
    letter = x
    if positions == "sinusoidal":
        embeddings = f"{prefix}embeddings"
        letter = "e"
    walker.step(
        f"{embeddings} = F.embedding({prefix}ids, table)",
        f"Embeddings{of_context}",
        "Each id selects its row of the table: the vector of the word.",
        f"{letter}_i = E_{{id_i}}",
        axes=(words,),
    )
    if positions != "sinusoidal":
        return x

    speeds = f"10000 ** (-torch.arange(0, {dim}, 2).double() / {dim})"
    angles = walker.step(
        f"{prefix}positions_angles = torch.arange({len(words)})[:, None] * {speeds}",
        f"Angles{of_context}",
        "The position times frequencies from 1 down to about 1 / 10000.",
        "θ_{ic} = i · 10000^{-2c/d}",
        axes=(words,),
    )
    walker.step(
        f"{prefix}positions = torch.stack([{angles}.sin(), {angles}.cos()], dim=-1).flatten(1)",
        f"Positions{of_context}",
        "A sine and a cosine for each angle: fast and slow waves that encode the position of a word.",
        "p_i = [sin θ_{i0} ; cos θ_{i0} ; sin θ_{i1} ; …]",
        axes=(words,),
    )
    return walker.step(
        f"{x} = {embeddings} + {prefix}positions",
        f"Embeddings with positions{of_context}",
        "The sum encodes the word and its position.",
        f"{x}_i = e_i + p_i",
        axes=(words,),
    )


def read_pieces(
    walker: Walker,
    prefix: str,
    text: str,
    word: int | str | None,
    *,
    opens: bool,
    closes: bool,
    target: bool = False,
) -> Axis:
    """Add the steps that split a text by the tokeniser of the run, with BEGIN and END as in training.

    A `target` is what a translator writes.
    """
    what = "context" if prefix else "text"
    tokeniser: Tokeniser = walker.values["tokeniser"]
    encode = "encode_target" if target else "encode"
    check_words(getattr(tokeniser, encode)(text), what)

    walker.give(what, text, f"the {what}")
    ids = f"*tokeniser.{encode}({what})"
    if opens:
        ids = f"BEGIN, {ids}"
    if closes:
        ids = f"{ids}, END"
    labels = tuple(tokeniser.pieces(eval(f"[{ids}]", walker.values)))
    words = Axis("words", labels, find_word(word, labels))

    of_context = " of the context" if prefix else ""
    walker.step(
        f"{prefix}ids = torch.tensor([{ids}])",
        f"Ids{of_context}",
        "The tokeniser of the model splits the text into learned sub-words, each with a number.",
        axes=(words,),
        scale="none",
    )
    walker.step(
        f"{prefix}words = tokeniser.pieces({prefix}ids.tolist())",
        f"Sub-words{of_context}",
        "The same as text.",
        axes=(words,),
    )
    return words


def embed_run(
    walker: Walker,
    model: Stack | TranslationTransformer,
    words: Axis,
    written: bool,
    result: str,
    prefix: str = "",
) -> str:
    """Add the steps that compute the input of the first layer from `{prefix}ids`; return its name."""
    config = model.config
    of_context = " of the context" if prefix else ""
    translates = isinstance(model, TranslationTransformer)
    table = "embedding"
    if translates and written and model.target_embedding is not None:
        table = "target_embedding"

    line = f"{prefix}embeddings = model.{table}({prefix}ids)"
    says = "Each id selects its row of the table: the vector of the word."
    formula = "e_i = E_{t_i}"
    if translates or config.positions == "sinusoidal":
        line += f" * math.sqrt({config.dim})"
        says += f" Its numbers are multiplied by √{config.dim}, as in the original Transformer."
        formula += " √{d}"
    name = walker.step(line, f"Embeddings{of_context}", says, formula, axes=(words,))
    if model.positions is None:
        return name

    walker.step(
        f"{prefix}positions = model.positions(torch.arange({len(words)})).double()",
        f"Positions{of_context}",
        f"The position of each word as a vector ({config.positions}).",
        "p_i",
        axes=(words,),
    )
    return walker.step(
        f"{result} = {name} + {prefix}positions",
        f"Embeddings with positions{of_context}",
        "The sum encodes the word and its position.",
        f"{result[0]}_i = e_i + p_i",
        axes=(words,),
    )
