"""Claims of the lessons of chapter "Beyond translation" fail when what they are about is broken."""

from teaching import changed_report, failing, starting

from regard.patterns import KeySpan
from regard_lab.teaching import captions


def test_transfer(monkeypatch):
    assert starting(
        failing(
            "transfer",
            (
                'classifier = encoder.changed(head="classes", classes=11)',
                'classifier = encoder.changed(head="words")',
            ),
        ),
        "The classifier takes over",
    )
    anew = (
        "encoder.changed(",
        "TextEncoder(TextEncoder.Config(vocab_size=2000, dim=64, layers=2)).changed(",
    )
    for one in changed_report(monkeypatch, "transfer")["records"]:
        one["transfer"] = one["scratch"] + (0.1 if one["labels"] <= 100 else 0.0)
        one["commonest"] = 0.4
    for one in changed_report(monkeypatch, "english")["transfer"]["records"]:
        one["english"] = 0.99 if one["labels"] > 20 else 0.01
    assert starting(
        failing("transfer", anew),
        "The classifier takes over",
        "With 300 labels the encoder",
        "With 500 labels the",
        "With 300 labels it makes less",
        "With 100 labels",
        "With 20 labels it is better",
        "From 100 labels on",
        "With 300 labels our encoder",
        "With 500 labels our",
        "With 20 labels our encoder",
    )


def test_answer_head(monkeypatch):
    figures = changed_report(monkeypatch, "answer_head")
    figures.update(head_share=0.9, by_place=0.6)
    figures["shares"][0][5] = 0.97
    figures["shown"]["weights"][10][0] = 0.9
    wide = ("SlidingWindow(window)", "SlidingWindow(4 * window)")
    assert starting(
        failing("answer_head", wide),
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
    flipped = "(word_numbers(captions)[0].flip(1), word_numbers(captions)[1]))"
    broken = failing("caption", ("word_numbers(captions))", flipped))
    assert starting(broken, "At least 10 of the 12 pictures", "Patches read the words of the thing")


def test_caption_of_a_worse_model(monkeypatch):
    # reads words after the end
    monkeypatch.setattr(captions, "KeySpan", lambda first, count: KeySpan(0, 8))
    shares = changed_report(monkeypatch, "caption")["shares"]
    for name, share in (("held out", 0.9), ("shape changed", 0.9), ("no cross-attention", 0.2)):
        shares[name]["all"] = share
    assert starting(
        failing("caption", ("p.KeySpan(0, 0)", "p.KeySpan(0, 1)")),
        "Pictures show what",
        "If one word changes",
        "With another caption",
        "The weights of each patch",
        "Without words, cross-attention",
    )


def test_imprecise_costs_and_formulas():
    broken = failing(
        "imprecise",
        (
            "STEPS = (4, 16, 64, 256), (64, 256, 1024, 4096), (16, 32, 64, 128, 256, 512)",
            "STEPS = (4, 16, 64, 256), (64, 256, 1024, 4096), (16, 64, 128)",
        ),
        ("normal(SEED, 2, 1, 48, 12, dim)", "normal(SEED, 2, 1, 48, 12, dim) * dim**0.1"),
        ("scale=dim**power, ", ""),
        ("Sinusoidal(48)", "Sinusoidal(48, base=100.0)"),
        ("mechanism=mechanism, parameters=parameters", ""),
        ('"full, causal: pairs": [p.Causal()', '"full, causal: pairs": [p.CausalWindow(16)'),
        ("p.Strided(math.isqrt(n))", "p.CausalWindow(32)"),
        ("torch.nn.RNN(64, 64)", "torch.nn.GRU(64, 64)"),
        ("count_steps(name, n", 'count_steps("attention", n'),
    )
    assert starting(
        broken,
        "Divided by the square root of",
        "Divided by the square of",
        "For d = 48 each wave is 10000^(2/48)",
        "The waves go from",
        "For 4 times the words",
        "Linformer needs 16 times",
        "Sorting for LSH",
        "Each round of LSH",
        "A recurrent layer needs fewer",
        "Self-attention computes all words",
    )


def test_imprecise_roles_sizes_and_masks():
    broken = failing(
        "imprecise",
        ("(16, 32, 64, 128, 256, 512)", "(16, 64, 128)"),
        ("after / after.sum(-1, keepdim=True)", "after"),
        (
            "rg.attention_detail(states, words, words, want",
            "rg.attention_detail(words, states, states, want",
        ),
        ("row = looks(q, k)[0]", "row = looks(q, k)[0].relu().where(torch.arange(12) < 1, 0)"),
        ("torch.zeros(1, count, 100, size)", "torch.zeros(1, count, 100, 512)"),
        ("context_dim=48)(x, context=context)", "context_dim=48)(x, context=context)[:, :3]"),
        ("rg.attention(three, k, v)", "rg.attention(three, three, three)"),
    )
    assert starting(
        broken,
        "Masking after the softmax",
        "The two ways of masking differ",
        "The decoder's states are the queries",
        "Replacing a state of the decoder",
        "One head gives every word",
        "Eight heads of d / 8",
        "In cross-attention lengths",
        "The size of a head",
    )


SHOWN = {
    "language model": ("object to verb", "noun to article", "closing to opening bracket"),
    "encoder": ("noun to article", "closing to opening bracket", "closing to opening quote"),
    "English model": ("subject to place", "place to subject"),
}


def scores_of(monkeypatch):
    """The scores of each model, the other figures of both reports."""
    small, english = (changed_report(monkeypatch, name) for name in ("relations", "english"))
    models = {"language model": small["models"]["causal"], "encoder": small["models"]["encoder"]}
    return (
        {
            **{name: one["relations"] for name, one in models.items()},
            "English model": english["relations"],
        },
        small,
        english,
    )


def test_relations_that_are_not_there(monkeypatch):
    scores, small, english = scores_of(monkeypatch)
    for name, some in SHOWN.items():
        for relation in some:
            one = scores[name][relation]
            one["margins"]["random choice"]["mean"] = 2.9 * one["margins"]["random choice"]["error"]
            one["neighbours"] = 0.0 if relation == "place to subject" else 0.6 * one["share"]
    for one in small["models"].values():
        one["sentences"]["cat"]["received"][2] = 2.5
        for scored in one["relations"].values():
            scored["random_labels"]["over_chance"] += 0.05
    small["models"]["causal"]["it"]["largest_change"] = 0.001
    english["articles"]["cat"]["received"][3] = 2.5
    english["received"]["trained"] = 0.02
    english["it"] |= {"moved": 0.9, "referent_first": 0.52}
    beside = ("weights.round(decimals=6)", "weights.round(decimals=6).roll(1, -1)")
    near = [
        (name, relation) for name in ("language model", "English model") for relation in SHOWN[name]
    ]
    broken = failing("relations", beside)
    # they hit less, at the word itself
    broken.remove("With random labels the same heads find no more than chance.")
    assert starting(
        broken,
        *(
            f"Some head of the {name} shows '{relation}'"
            for name, some in SHOWN.items()
            for relation in some
        ),
        *(
            f"The head of the {name} for '{relation}' looks at that key less"
            for name, relation in near
        ),
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
    scores, _, english = scores_of(monkeypatch)
    for relation in ("verb to subject", "noun to modifier", "modifier to noun", "previous word"):
        one = scores["encoder"][relation]
        one["margins"] = {name: {"mean": 0.1, "error": 0.01} for name in one["margins"]}
    scores["encoder"]["next word"]["share"] = 0.5
    english["received"]["trained"] = 0.9
    missing = ("verb to subject", "noun to modifier", "modifier to noun")
    near = ("previous word", "next word")
    assert starting(
        failing("relations", ("random_labels(links, len(words), True, draw)", "links")),
        *(f"No chosen head of these models shows '{relation}'" for relation in missing),
        *(f"A head of the encoder nearly always looks at the {relation}" for relation in near),
        "The two nouns get the most weight in more",
        "With random labels the same heads find",
    )
