"""The sections of five well-known articles about attention, each with what answers it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """A section of an article.

    Args:
        title: what the section is about.
        lessons: those that answer it, best first, each as "name" or "name: beginning of a claim". The number is the
            figure of that claim in the first lesson that exists, or of all its claims if it is named several times;
            without a claim, of its first claim.
        commands: besides the lessons, without the word regard.
        number: computed by the function of this name in `worked_examples`, instead of a claim.
        page: a page of the documentation that belongs to the section, as "title: path in docs/".
    """

    title: str
    lessons: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    number: str | None = None
    page: str | None = None


WALK = 'walkthrough "Life is short, eat dessert first"'
EXAMPLE = "walkthrough --example life-is-short"
FIVE_WORDS = 'walkthrough "the animal was too tired" --word 1'
WHOLE = 'walkthrough "The animal was tired" --whole'
SIX_LAYERS = f"{WHOLE} --model encoder --layers 6"
WHY = 'translate runs/demo "The animal didn\'t cross the street because it was too tired." --why es --instead er,sie'
BIG_BIRD = 'show "sliding_window(4) | global_tokens(0) | random_blocks(1, block=4, seed=0)"'
BAHDANAU = "train translation --data pronouns --model bahdanau --out runs/bahdanau"

ARTICLES: dict[str, tuple[Section, ...]] = {
    "Understanding Transformers (Part 2): Attention, Self-Attention, Cross-Attention": (
        Section("Core concept: weights that depend on the words", (), (EXAMPLE,), "weights"),
        Section("Components: queries, keys, values", (), (EXAMPLE,), "matrices"),
        Section("Components: scaled dot-product", ("scale: Unscaled scores",)),
        Section("Multi-head: several sets of Q, K and V, in parallel", ("one_head", "heads"), (f"{WALK} --heads 2",)),
        Section("Multi-head: concatenation and final layer", ("encoder",), (WHOLE, WALK), "joined_heads"),
        Section("Self-attention against cross-attention", ("cross: The output has the image's shape",)),
        Section(
            "Advantages: all positions at once",
            ("recurrent: An attention layer", "imprecise: Self-attention computes"),
        ),
        Section(
            "Advantages: long-range dependencies",
            ("fixed_vector: At the longest training length", "windows: Each layer extends"),
        ),
        Section("Advantages: weights that depend on the input", ("referent: The pronoun follows", "relations")),
        Section("Why not before: compute, algorithms, sequential dependencies", (
            "recurrent: A recurrent network takes one step", "imprecise: A recurrent layer needs fewer",
        )),
    ),
    "Papers Explained Review 09: Attention Layers": (
        Section("Scaled dot product", ("scale: The entropy of unscaled",)),
        Section("Multi-head attention", ("one_head", "heads")),
        Section("Cross-attention of two sequences", ("cross: Every cell gives its largest", "translation")),
        Section("Cross-attention of image and text in diffusion models", ("caption", "cross: Every cell gives its")),
        Section("Causal attention: masking after the softmax and dividing again", (
            "causal: If weights are masked", "decoder",
        ), ('show "causal"',)),
        Section(
            "Causal attention: minus infinity before the softmax",
            ("causal: The three steps", "imprecise: They differ"),
        ),
        Section(
            "Sliding window: w/2 on each side, O(n·w)",
            ("sparse: A window keeps", "windows"), ('show "sliding_window(4)"',),
        ),
        Section("Sliding window: stacked layers like a CNN", ("windows: Each layer extends",), (
            'show "causal_window(4)" --layers 3',
        )),
        Section("Multi-query: a smaller cache, larger batches", ("grouped: The cache shrinks", "generation")),
        Section("Grouped-query: G groups, with MHA and MQA as ends", ("grouped: Query head h", "generation")),
        Section("Grouped-query: mean-pooled conversion", ("grouped: If they differ",), (
            "convert kv-heads runs/demo --kv-heads 1 --out runs/one-kv-head",
        )),
    ),
    "Self-attention from scratch": (
        Section("Introduction", (), (FIVE_WORDS,), "z_by_hand"),
        Section("The mechanism as a building block of language models", ("generation", "decoder"), (
            'generate runs/novel "It was" --max-tokens 8',
        )),
        Section("Multi-head attention", ("one_head", "heads")),
        Section("Coding an input sentence", (), (EXAMPLE,), "ids"),
        Section("Weight matrices", (), (EXAMPLE,), "matrices"),
        Section("Unnormalised attention weights ω", (), (EXAMPLE,), "scores"),
        Section("Attention scores", ("scale",), (EXAMPLE,), "weights"),
        Section("Context vectors for all six elements", (), (EXAMPLE,), "contexts"),
        Section("“The cat sat on the mat”: cat and mat get more", ("relations: In 'The cat sat", "heads")),
        Section(
            "“The quick brown fox jumps over the lazy dog”: heads for verbs and for adjectives",
            ("relations: No head of these models shows 'verb to subject'",
             "relations: No head of these models shows 'noun to modifier'", "heads"),
        ),
        Section("“Life is short, eat dessert first”", (), (EXAMPLE,), "weights"),
    ),
    "How Multi Head Attention Math Works in Transformers": (
        Section("Basics: Bahdanau", ("alignment: Both cells",), (BAHDANAU,)),
        Section(
            "Basics: a fixed vector against c_i",
            ("fixed_vector: At the longest training length", "alignment: Bahdanau's context"),
            ("train translation --data pronouns --model none --out runs/none",),
        ),
        Section(
            "Basics: bidirectional encoder",
            ("alignment: Bahdanau's context", "fixed_vector"), (BAHDANAU,), "both_directions",
        ),
        Section("Basics: alignment, global and soft", ("alignment: Bahdanau's weights", "imprecise: One head")),
        Section("Types of attention", ("alignment: Both cells",), (
            "train translation --data pronouns --model luong-general --out runs/luong",
        )),
        Section("Attention math: scale and stable gradients", ("scale: Scaled, the gradient", "imprecise")),
        Section("Luong against Bahdanau: s_t against s_{t-1}", ("alignment: Luong's weights",)),
        Section("Luong against Bahdanau: the output is modified", ("alignment: With input feeding",)),
        Section("Luong against Bahdanau: AttentionWrapper", ("alignment: Both cells",), (BAHDANAU,)),
        Section("Sparse: window, global, random", ("sparse", "windows"), (BIG_BIRD,), "big_bird_pairs"),
        Section("Sparse: strided and fixed, O(N√N)", ("sparse: Strided and fixed", "imprecise: Sorting for LSH"), (
            'show "causal & strided(4)"', 'show "causal & fixed(4, summary=1)"',
        )),
        Section("Linearised: Q'(K'ᵀV)", ("linear: Twice as many words",)),
        Section("Linearised: Linear Transformer, Performer, RFA", ("approximations", "linear: The result differs"), (
            "train translation --data pronouns --mechanism \"performer(features=64)\" --out runs/performer",
        )),
        Section("Multi-query and grouped-query", ("grouped", "generation")),
        Section("Self-attention: LSTMN", ("recurrent",), (), "lstmn", "Models: reference/regard_lab.models.md"),
        Section("Self-attention: Transformer", ("encoder", "decoder"), (WHOLE, WALK)),
        Section("Transformer encoder: six layers, two sub-layers", ("encoder",), (SIX_LAYERS,), "six_layers"),
        Section("Positional encoding: equivariance", ("positions: Without positions",)),
        Section(
            "Positional encoding: wavelengths 2π to 10000·2π",
            ("positions: Wavelengths grow", "imprecise: For d = 48"),
        ),
        Section("Positional encoding: PE(pos+k) is linear in PE(pos)", ("positions: PE(pos + k)",)),
        Section("Positional encoding: four waves drawn", ("positions: Wavelengths grow",)),
        Section(
            "Complexity: constant sequential steps",
            ("recurrent: An attention layer", "imprecise: Self-attention computes"),
        ),
        Section("Complexity: transfer learning", ("transfer",), (
            "train classifier --data LABELS.tsv --from runs/words --out runs/classes",
        ), "transfer"),
        Section(
            "Complexity: the table by model",
            ("complexity", "imprecise: For 4 times the words"), ("bench complexity",),
        ),
        Section("One head against several", ("one_head", "heads"), (
            "compare --data pronouns --models transformer --heads 1,8 --equal-parameters --out runs/one-or-eight",
        )),
    ),
    "Overview on Self-attention": (
        Section("The goal: a table of weights between the words of a sentence", ("referent: In the chosen head",), (
            "demo",
            'translate runs/demo "The animal didn\'t cross the street because it was too tired." --picture it.png',
        )),
        Section("“… because it was too tired / congested”", ("referent: The sentences known", "relations"), (
            WHY, "lenses runs/demo",
        )),
        Section("From the seq2seq score (V, W, U, tanh, three vectors) to q, k and v", (
            "alignment: Both cells", "imprecise: The decoder's states",
        )),
        Section(
            "z1 step by step for five words",
            (), (FIVE_WORDS,), "z_by_hand",
        ),
        Section("Everything at once, as matrices of 64 × T", (), (
            'walkthrough "the animal was too tired" --columns', 'walkthrough "the animal was too tired"',
        ), "by_columns"),
        Section("The whole block", ("encoder", "decoder", "translation"), (WHOLE,)),
    ),
}  # fmt: skip
