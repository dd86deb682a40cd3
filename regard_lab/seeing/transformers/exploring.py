"""The attention of a model of transformers as the explorer shows it: recorded by `observe`, between words."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from regard.arguments import a_list, count_of, of_kind, whole
from regard.errors import ArgumentError, UnsupportedError
from regard.integrations.transformers.attaching import attached
from regard.integrations.transformers.modules import attention_modules, layer_names, models_inside
from regard.integrations.transformers.watching import Observed, observe
from regard_lab.seeing.explorer.server import ExplorerServer
from regard_lab.seeing.explorer.sources import (
    MOST_EXPLAINED,
    MOST_REREAD,
    Attention,
    Exploration,
    explained,
    named,
)
from regard_lab.seeing.transformers.explaining import (
    CROSS,
    Pretrained,
    check_weights,
    contrasts_of,
    kind_of,
    pretrained_without_each,
)
from regard_lab.seeing.transformers.texts import PretrainedText, spans_of
from regard_lab.seeing.watching import Span, in_eval_mode, merge

__all__ = ["explore_observed", "explore_pretrained", "serve_pretrained"]

MOST_WEIGHTS = 2**28  # of all layers and heads; 1 GiB as float32


def explore_observed(
    observed: Observed,
    words: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    *,
    batch_row: int = 0,
    title: str = "",
) -> Exploration:
    """Weights that `observe` collected as an exploration, which `regard_lab.seeing.show` makes a page of.

    Calls of modules whose names differ in numbers alone, with weights of one shape, are the layers of one kind of
    attention. Works for every model that can be observed; `explore_pretrained` also finds the words of a text.

    Args:
        observed: what `observe(model, "weights")` collected in one forward pass.
        words: a word for each query, where the number fits; positions elsewhere.
        keys: a word for each key of attention between two sequences.
        batch_row: the row of the batch that is shown.
        title: a line above the page.

    Raises:
        RegardError: weights were not among what was collected.
        ArgumentError: no such batch row, or words that fit no attention.

    >>> import transformers
    >>> from regard_lab.seeing import show
    >>> from regard.integrations.transformers import attach
    >>> config = transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=2, n_head=2, n_positions=16)
    >>> model = attach(transformers.GPT2Model(config))
    >>> with observe(model, "weights") as observed:
    ...     output = model(torch.tensor([[1, 2, 3]]))
    >>> exploration = explore_observed(observed, ["a", "b", "c"])
    >>> exploration.attentions[0].weights.shape, exploration.texts
    (torch.Size([2, 2, 3, 3]), {'text': ('a', 'b', 'c')})
    >>> page = show(exploration)
    """
    needed = "what observe(model, 'weights') collected"
    groups = _stacked(of_kind("observed", observed, Observed, needed), batch_row)
    listed = {}
    for name, labels in (("words", words), ("keys", keys)):
        if labels is not None:
            listed[name] = tuple(a_list(name, labels, str, "a list of words"))

    texts: dict[str, tuple[str, ...]] = {}
    attentions = []
    for name, weights in groups:
        q_len, k_len = weights.shape[2:]
        rows = _text(texts, "text", listed.get("words"), q_len)
        columns = rows
        if q_len != k_len or CROSS.search(name):
            columns = _text(texts, "keys", listed.get("keys"), k_len)
        title_of_group = name if len(groups) > 1 else "Attention"
        attentions.append(_attention(title_of_group, rows, columns, weights))

    shapes = sorted({tuple(weights.shape[2:]) for _, weights in groups})
    for name, labels in listed.items():
        if labels not in texts.values():
            sizes = ", ".join(f"{q_len} x {k_len}" for q_len, k_len in shapes)
            raise ArgumentError(
                f"{name} has {len(labels)} words, which fits no attention that was observed: {sizes}"
            )
    return Exploration(title or f"Attention of {observed.model}", texts, tuple(attentions), {})


def explore_pretrained(
    model: PreTrainedModel,
    tokenizer: Any,
    text: str,
    written: str | None = None,
    *,
    layers: Iterable[str | int] | str | int | None = None,
    title: str = "",
    changes: bool = False,
    of: str | None = None,
    instead_of: Sequence[str] = (),
    place: int | None = None,
) -> Exploration:
    """Record all attention weights of a model of transformers on a text, between words.

    An encoder-decoder reads `text` and writes; others read `text`. A model that is not attached is attached for this
    call alone. Sub-words are merged: the sum over those that are read, the mean over those that read.

    Args:
        model: a model of transformers; it is left unchanged.
        tokenizer: its tokenizer.
        text: the text that is read.
        written: what an encoder-decoder writes; by default, what it generates by greedy search.
        layers: numbers or names of attention modules, as for `observe`; all by default.
        title: a line above the page.
        changes: also read the text again without each of its first 40 words, for the page's What if: what a causal
            model reads next, what a model of masked words fills in at masked places, what an encoder-decoder writes,
            or else how the vector of each word moves; and explain the last 40 words that the model chose by every lens.
        of, instead_of, place: with `changes`, the word that is shown first, as for `contrasts_of`.

    Returns:
        The exploration, which `regard_lab.seeing.show` makes a page of.

    Raises:
        UnsupportedError: a model that cannot be attached, or that has no attention weights.
        ArgumentError: `written` for a model that reads alone, an empty text, one that is too long for the model, or
            more weights than 2^28.
    """
    models_inside(model)  # refuses everything else
    check_weights(model)
    translates = bool(getattr(model.config, "is_encoder_decoder", False))
    if written is not None and not translates:
        raise ArgumentError(
            f"{type(model).__name__} reads one text and writes none; leave out written="
        )
    read = PretrainedText.of(model, tokenizer, text)
    _check_size(model, layers, len(read.ids))

    with in_eval_mode(model), attached(model), torch.no_grad():
        inputs = dict(read.inputs)
        if translates:
            read = read.writing(written)
            assert read.target is not None
            inputs["labels"] = torch.tensor([read.target], device=model.device)
            _check_size(model, layers, max(len(read.ids), len(read.target)))
        with observe(model, "weights", layers=layers) as observed:
            model(**inputs)

    explore = _of_translation if translates else _of_text
    exploration = explore(observed, read, title or text)
    exploration = replace(exploration, chosen=max(read.words, default=0))
    if not changes:
        return exploration
    with attached(model):
        subject = Pretrained(model, tokenizer)
        exploration = _with_changes(exploration, subject, read)
        return _explained(exploration, subject, read, text, of, instead_of=instead_of, place=place)


def _explained(
    exploration: Exploration,
    subject: Pretrained,
    read: PretrainedText,
    text: str,
    of: str | None,
    **options: Any,
) -> Exploration:
    """The exploration with what each word that the model chose depends on by every lens, if it chose any."""
    written = None
    if read.target is not None:
        written = read.tokenizer.decode(read.target, skip_special_tokens=True)
    try:
        chosen_words = contrasts_of(subject, text, written=written)
    except (ArgumentError, UnsupportedError):  # nothing is masked, or the model has no head
        if of is not None:
            raise
        return exploration

    contrasts = {}
    for place, contrast in chosen_words.items():
        if contrast.written or contrast.at is not None:
            contrasts[place] = contrast
    contrasts = dict(list(contrasts.items())[-MOST_EXPLAINED:])
    asked = {} if of is None else contrasts_of(subject, text, of, written=written, **options)
    contrasts |= asked
    if not contrasts:
        return exploration
    words = exploration.texts["text" if read.target is None else "target"]
    # the end of a text that a limit has cut is explained too, and has no word
    named = [place for place in contrasts if place < len(words) and not _is_sign(words[place])]
    chosen = max(asked or named or contrasts)
    return replace(
        exploration,
        explained=explained(subject, read.tokenizer, contrasts, chosen),
        written="text" if read.target is None else "target",
        chosen=chosen,
    )


def _is_sign(word: str) -> bool:
    """Whether a word is a sign of the tokenizer, such as `</s>`."""
    return word.startswith("<") and word.endswith(">")


def _with_changes(
    exploration: Exploration, subject: Pretrained, read: PretrainedText
) -> Exploration:
    """The exploration with what the model does without each word, or a note with the reason why it has none."""
    if len(read.spans) > MOST_REREAD:
        return _with_note(
            exploration,
            f"Texts of more than {MOST_REREAD} words are not read again without each word.",
        )
    try:
        changes = pretrained_without_each(subject, read, MOST_EXPLAINED)
    except UnsupportedError as error:
        return _with_note(exploration, f"No word can be changed: {error}.")
    if read.fills_in and not read.masked:
        mask = read.tokenizer.mask_token
        exploration = _with_note(
            exploration, f"Write {mask} for a word to see what the model puts there."
        )
    return replace(exploration, changes=changes, follows=read.follows)


def _with_note(exploration: Exploration, note: str) -> Exploration:
    return replace(exploration, notes=(*exploration.notes, note))


def serve_pretrained(
    model: PreTrainedModel,
    tokenizer: Any,
    text: str,
    written: str | None = None,
    *,
    layers: Iterable[str | int] | str | int | None = None,
    title: str = "",
    port: int = 0,
) -> ExplorerServer:
    """Make a local page of a model of transformers, in which texts are read, and words erased.

    The page is served to this machine alone, as that of `regard view`, from `serve_forever()` until Ctrl-C, or from
    `start()` until `close()`.

    Args:
        model, tokenizer, layers, title: as for `explore_pretrained`.
        text: the text that is read first.
        written: what an encoder-decoder writes for it; by default, and for other texts, what it generates.
        port: of the page; 0 for one that is free.

    Returns:
        The server, whose `url` is the address of the page.

    Raises:
        RegardError: as `explore_pretrained`; and a port that cannot be used.
    """
    first = explore_pretrained(
        model, tokenizer, text, written, layers=layers, title=title, changes=True
    )

    def read(asked: str) -> Exploration:
        of_asked = written if asked == text else None
        return explore_pretrained(model, tokenizer, asked, of_asked, layers=layers, changes=True)

    return ExplorerServer(first, read, text=text, label="Text", port=port)


def _of_text(observed: Observed, read: PretrainedText, title: str) -> Exploration:
    spans = read.spans
    length = len(read.ids)
    texts = {"text": tuple(word for word, _ in spans)}
    groups = _stacked(observed, 0)
    attentions = []
    for name, weights in groups:
        if len(groups) == 1:
            name = "Self-attention"
        q_len, k_len = weights.shape[2:]
        if q_len == k_len == length:
            attentions.append(_attention(name, "text", "text", merge(weights, spans, spans)))
        else:  # such as patches of a picture
            rows = _text(texts, "positions", None, q_len)
            columns = _text(texts, "positions", None, k_len)
            attentions.append(_attention(name, rows, columns, weights))
    return Exploration(title, texts, tuple(attentions), {})


def _of_translation(observed: Observed, text: PretrainedText, title: str) -> Exploration:
    target_ids = text.target or []
    target = spans_of(text.tokenizer, target_ids)
    read: list[Span] = [("<begin>", range(1))]  # the target one place later, without its last id
    for word, ids in target:
        read_ids = range(ids.start + 1, min(ids.stop + 1, len(target_ids)))
        if read_ids:
            read.append((word, read_ids))
    sides = {"source": text.spans, "target": target, "read": read}

    attentions: list[Attention] = []
    for name, weights in _stacked(observed, 0):
        fields = named(kind_of(name))
        if any(attention.name == fields["name"] for attention in attentions):
            fields["name"] += f": {name}"
        merged = merge(weights, sides[fields["rows"]], sides[fields["columns"]])
        attentions.append(Attention(weights=merged, **fields))
    attentions.sort(key=lambda attention: not attention.name.startswith("Cross"))
    texts = {name: tuple(word for word, _ in spans) for name, spans in sides.items()}
    return Exploration(title, texts, tuple(attentions), {})


def _stacked(observed: Observed, batch_row: int) -> list[tuple[str, torch.Tensor]]:
    """The name of each kind of attention, with its weights: (layers, heads, queries, keys), float32 on the CPU."""
    whole("batch_row", batch_row, 0)
    groups: dict[tuple[str, torch.Size], list[torch.Tensor]] = {}
    for call in observed.calls:
        rows = len(call.weights)
        if batch_row >= rows:
            raise ArgumentError(
                f"batch_row is {batch_row}; {call.layer} was called with {count_of(rows, 'rows')}"
            )
        weights = call.weights[batch_row].detach().float().cpu()
        name = re.sub(r"\d+", "#", call.layer)
        groups.setdefault((name, weights.shape), []).append(weights)
    return [(name, torch.stack(layers)) for (name, _), layers in groups.items()]


def _text(
    texts: dict[str, tuple[str, ...]], name: str, words: tuple[str, ...] | None, count: int
) -> str:
    """The name of a text of so many words, or positions if the words are not as many; it is added if it is new."""
    if words is None or len(words) != count:
        words = tuple(map(str, range(count)))
    label = name
    while texts.setdefault(label, words) != words:
        label = f"{label}, {count}" if "," not in label else f"{label}'"
    return label


def _attention(name: str, rows: str, columns: str, weights: torch.Tensor) -> Attention:
    causal = rows == columns and not bool(weights.triu(1).any())
    titles = ("word reading", "words read") if rows == columns else ("query", "key")
    return Attention(name, rows, columns, weights, *titles, unwritten=causal)


def _check_size(model: PreTrainedModel, layers: Any, length: int) -> None:
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", 1) or 1
    if layers is not None:
        count = len(layer_names(model, layers))
    else:
        count = max(len(attention_modules(model)), getattr(config, "num_hidden_layers", 0))
    total = count * heads * length**2
    if total > MOST_WEIGHTS:
        raise ArgumentError(
            f"{count_of(count, 'layers')} of {heads} heads over {length} ids have {total:,} weights, and a page is "
            f"made of at most {MOST_WEIGHTS:,}; choose layers=, or give a shorter text"
        )
