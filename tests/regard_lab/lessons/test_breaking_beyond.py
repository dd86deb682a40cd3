"""Claims of the lessons of chapter "Beyond translation" fail when what they are about is broken."""

import torch
from teaching import Computed, changed_report, failing, starting

import regard as rg
from regard import patterns as p
from regard.positions import Sinusoidal
from regard_lab.teaching import denoiser
from regard_lab.teaching.stepping import count_steps


def test_transfer_to_the_same_words():
    with_words = Computed(lambda encoder: encoder.changed(head="words"))
    assert starting(failing("transfer", classifier=with_words), "The classifier takes over")


def test_transfer(monkeypatch):
    """A new model is taken in place of the encoder, and reports say that it helps where it did not."""
    for record in changed_report(monkeypatch, "transfer")["records"]:
        gain = 0.1 if record["labels"] <= 100 else 0.0
        record["transfer"] = record["scratch"] + gain
        record["commonest"] = 0.4
        record["last_word"] = 0.99 if record["labels"] > 100 else 0.01
    for record in changed_report(monkeypatch, "english")["transfer"]["records"]:
        record["english"] = 0.99 if record["labels"] > 20 else 0.01

    def of_a_new_encoder(TextEncoder, config):
        return TextEncoder(config).changed(head="classes", classes=11)

    assert starting(
        failing("transfer", classifier=Computed(of_a_new_encoder)),
        "The classifier takes over",
        "With 300 labels the encoder of",
        "With 500 labels the",
        "With 300 labels it makes less",
        "With 300 labels the model from random weights",
        "With 300 labels the copied encoder",
        "With 100 labels it is better",
        "With 100 labels the model from random weights",
        "With 20 labels it is better",
        "From 100 labels on",
        "With 300 labels our encoder",
        "With 500 labels our",
        "With 20 labels our encoder",
    )


def test_answer_head(monkeypatch):
    """Shares of the report are others, a weight of the picture too, and windows are wider than they say."""
    figures = changed_report(monkeypatch, "answer_head")
    figures.update(head_share=0.9, by_place=0.6)
    figures["shares"][0][5] = 0.97
    figures["shown"]["weights"][10][0] = 0.9

    def of_wider_windows(share_inside):
        return lambda window: share_inside(4 * window)

    assert starting(
        failing("answer_head", share_inside=Computed(of_wider_windows)),
        "The head finds",
        "The same weights",
        "The head does not count",
        "The weights in",
        "A window in the head's own layer",
    )


def test_answer_head_without_parts(monkeypatch):
    replaced = changed_report(monkeypatch, "answer_head")["replaced"]
    replaced["windows"][2]["before"] = 0.7
    replaced["without_head"][3] = 0.7
    replaced["heads_kept"][-1]["share"] = 0.8
    assert starting(
        failing("answer_head"),
        "With narrow windows",
        "No single head",
        "Together the heads are needed",
    )


def test_caption_in_another_order():
    broken = failing("caption", numbers=Computed(lambda numbers: numbers.flip(1)))
    assert starting(broken, "At least 10 of the 12 pictures", "Patches read the words of the thing")


def test_caption_of_a_worse_model(monkeypatch):
    """The model reads words after the end, and one word where there is none; the report is that of another model."""
    monkeypatch.setattr(denoiser, "KeySpan", lambda first, count: p.KeySpan(0, 8))
    shares = changed_report(monkeypatch, "caption")["shares"]
    shares["held out"]["all"] = 0.9
    shares["shape changed"]["all"] = 0.9
    shares["no cross-attention"]["all"] = 0.2

    def reading_a_word(to_words, x, words):
        return to_words(x, context=words, pattern=p.KeySpan(0, 1))

    assert starting(
        failing("caption", silent=Computed(reading_a_word)),
        "Pictures show what",
        "If one word changes",
        "With another caption",
        "The weights of each patch",
        "Without words, cross-attention",
    )


FEW_LENGTHS = (16, 64, 128)


def test_imprecise_scores_and_waves():
    """Vectors grow with d, scores are divided by the root where it should be the square, and waves are shorter."""

    def growing_with_d(qk_by_dim):
        return {d: qk * d**0.1 for d, qk in qk_by_dim.items()}

    broken = failing(
        "imprecise",
        LAYER_LENGTHS=FEW_LENGTHS,
        qk_by_dim=Computed(growing_with_d),
        entropy_by_square=Computed(lambda entropy_by_root: entropy_by_root),
        Sinusoidal=lambda dims: Sinusoidal(dims, base=100.0),
    )
    assert starting(
        broken,
        "Divided by the square root of",
        "Divided by the square of",
        "For d = 48 each wave is 10000^(2/48)",
        "The waves go from",
    )


def test_imprecise_influence_and_heads():
    """The mask is the wrong way round, a head reads a part of a word, and vectors grow with the source."""

    def reversed_mask(moved_by):
        return lambda word, pattern: moved_by(word, p.Where(lambda i, j: j >= i))

    broken = failing(
        "imprecise",
        LAYER_LENGTHS=FEW_LENGTHS,
        moved_by=Computed(reversed_mask),
        read=Computed(lambda read: read * (torch.arange(16) < 4)),
        context_sizes=Computed(lambda context_sizes: [3, 30]),
    )
    assert starting(
        broken,
        "In causal attention a word influences",
        "In an encoder each output depends",
        "Each head reads every number",
        "A context vector has the same length",
    )


def test_imprecise_layers():
    """The query is a hundredth of the key, and every text has three words."""
    broken = failing(
        "imprecise",
        LAYER_LENGTHS=FEW_LENGTHS,
        query_of_key=Computed(lambda query_of_key: query_of_key / 100),
        sentence=Computed(lambda sentence: sentence[:, :3]),
    )
    assert starting(
        broken,
        "A query that is equal to a key",
        "The learned numbers are those",
        "A layer returns one vector",
    )


def test_imprecise_quality(monkeypatch):
    """Bands are narrow in every layer, nothing is divided, and reports say that windows and few heads lose nothing."""
    recall = changed_report(monkeypatch, "choosing")
    recall["the last 64"] = recall["all keys"]
    for row in changed_report(monkeypatch, "generation")["rows"]:
        row["uptrained"] = row["control"]

    broken = failing(
        "imprecise",
        LAYER_LENGTHS=FEW_LENGTHS,
        share_in_turn=Computed(lambda banded_pairs, dense_pairs: banded_pairs / dense_pairs),
        undivided=Computed(lambda undivided: undivided / 500),
        few_values=Computed(lambda few_values: few_values[..., :4]),
    )
    assert starting(
        broken,
        "Layers that are dense and banded",
        "Without the divisor",
        "The number of features",
        "Windows lose what is far back",
        "The fewer key/value heads",
    )


def test_imprecise_costs():
    """Plans are those of softmax, patterns are windows, and a recurrent layer has gates but computes all at once."""

    def cost_of_softmax(mechanism, n):
        x = torch.zeros(1, 1, n, 16)
        return rg.plan_attention(x, x, x).cost

    def of_windows(width):
        return Computed(lambda LENGTHS: [p.CausalWindow(width).count(n, n) for n in LENGTHS])

    broken = failing(
        "imprecise",
        LAYER_LENGTHS=FEW_LENGTHS,
        cost_of=cost_of_softmax,
        full_pairs=of_windows(16),
        strided_pairs=of_windows(32),
        recur=lambda n: torch.nn.GRU(64, 64)(torch.zeros(n, 64)),
        count_steps=lambda name, n, seed: count_steps("attention", n, seed),
    )
    assert starting(
        broken,
        "For 4 times the words",
        "Linformer needs 16 times",
        "Sorting for LSH",
        "Each round of LSH",
        "A recurrent layer needs fewer",
        "Self-attention computes all words",
    )


def test_imprecise_roles_sizes_and_masks(monkeypatch):
    """Rows are not divided, queries and keys change places, and sizes are other ones or are not compared."""
    monkeypatch.setattr(rg, "attention", lambda q, k, v, **options: q)

    def changed_places(cross_weights):
        return lambda states, words: cross_weights(words, states)

    def of_one_word(first_row):
        return first_row * (torch.arange(12) < 1)

    broken = failing(
        "imprecise",
        LAYER_LENGTHS=FEW_LENGTHS,
        mask_after=lambda scores: scores.softmax(-1).tril(),
        cross_weights=Computed(changed_places),
        first_row=Computed(of_one_word),
        layer=Computed(lambda heads: rg.MultiHeadAttention(512, heads, head_dim=512)),
        output=Computed(lambda output: output[:, :3]),
    )
    assert starting(
        broken,
        "Masking after the softmax",
        "The two ways of masking differ",
        "In causal attention a word influences",
        "In an encoder each output depends",
        "Without the divisor",
        "The number of features",
        "The decoder's states are the queries",
        "Replacing a state of the decoder",
        "One head gives every word",
        "Eight heads of d / 8",
        "In cross-attention lengths",
        "The size of a head",
    )


SHOWN_RELATIONS = {
    "language model": ("object to verb", "noun to article", "closing to opening bracket"),
    "encoder": ("noun to article", "closing to opening bracket", "closing to opening quote"),
    "English model": ("subject to place", "place to subject"),
}


def scores_of_models(small, english):
    """The scores of each model in the figures of both reports."""
    return {
        "language model": small["models"]["causal"]["relations"],
        "encoder": small["models"]["encoder"]["relations"],
        "English model": english["relations"],
    }


def test_relations_that_are_not_there(monkeypatch):
    """No head is beyond chance, other words get most weight, and hand-made heads look one word too early."""
    small = changed_report(monkeypatch, "relations")
    english = changed_report(monkeypatch, "english")
    scores = scores_of_models(small, english)
    for name, relations in SHOWN_RELATIONS.items():
        for relation in relations:
            score = scores[name][relation]
            margin = score["margins"]["random choice"]
            margin["mean"] = 2.9 * margin["error"]
            score["neighbours"] = 0.6 * score["share"]
            if relation == "place to subject":
                score["neighbours"] = 0.0

    for model in small["models"].values():
        model["sentences"]["cat"]["received"][2] = 2.5
        for score in model["relations"].values():
            score["random_labels"]["over_chance"] += 0.05
    small["models"]["causal"]["it"]["largest_change"] = 0.001
    english["articles"]["cat"]["received"][3] = 2.5
    english["received"]["trained"] = 0.02
    english["it"].update(moved=0.9, referent_first=0.52)

    broken = failing("relations", alpha=Computed(lambda alpha: alpha.roll(1, -1)))
    # they hit less, at the word itself
    broken.remove("With random labels the same heads find no more than chance.")
    shown = []
    for name, relations in SHOWN_RELATIONS.items():
        shown += [f"Some head of the {name} shows '{relation}'" for relation in relations]
    near = []
    for name in ("language model", "English model"):
        for relation in SHOWN_RELATIONS[name]:
            near.append(f"The head of the {name} for '{relation}' looks at that key less")
    assert starting(
        broken,
        *shown,
        *near,
        *(f"With random labels, heads of the {name}" for name in ("language model", "encoder")),
        "In 'The cat sat on the mat.' neither",
        "In the English model “cat” and “mat”",
        "In made sentences the two nouns",
        "In the language model the weights of “it”",
        "In the English model the balance of “it”",
        "In this head the right noun",
        "The measure finds the relation",
    )


def test_relations_that_are_said_to_be_missing(monkeypatch):
    """Heads of the encoder are beyond every baseline, and random labels are the right ones."""
    small = changed_report(monkeypatch, "relations")
    english = changed_report(monkeypatch, "english")
    encoder = scores_of_models(small, english)["encoder"]
    missing = ("verb to subject", "noun to modifier", "modifier to noun")
    for relation in (*missing, "previous word"):
        margins = encoder[relation]["margins"]
        encoder[relation]["margins"] = {name: {"mean": 0.1, "error": 0.01} for name in margins}
    encoder["next word"]["share"] = 0.5
    english["received"]["trained"] = 0.9

    broken = failing("relations", random_labels=lambda links, length, causal, draw: links)
    assert starting(
        broken,
        *(f"No chosen head of these models shows '{relation}'" for relation in missing),
        *(
            f"A head of the encoder nearly always looks at the {relation}"
            for relation in ("previous word", "next word")
        ),
        "The two nouns get the most weight in more",
        "They get it more often than the two places",
        "With random labels the same heads find",
    )
