"""Claims of the lessons of "Writing text quickly" and "Longer texts" fail when what they are about is broken."""

from functools import partial

import pytest
import torch
from teaching import Computed, changed_report, failing, starting

import regard as rg
import regard_lab.teaching.approximating
from regard import patterns as p
from regard.layers.caches import RecurrentState
from regard.mechanisms import LSH, Linformer, Performer
from regard.patterns import Pattern
from regard.patterns.band import Reach
from regard_lab.conversion.heads import resized
from regard_lab.decoding import Sampling
from regard_lab.models import LanguageConfig, LanguageModel


@pytest.fixture(autouse=True)
def _untimed(monkeypatch):
    monkeypatch.setattr(
        regard_lab.teaching, "milliseconds", lambda calls: dict.fromkeys(calls, 1.0)
    )


def test_sampling_that_draws_from_other_probabilities():
    """Every setting is forgotten when a word is drawn, and a temperature of 0 too."""

    class Unfiltered(Sampling):
        def choose(self, scores, rows, place):
            return Sampling(seed=self.seed).choose(scores, rows, place)

    assert starting(
        failing("sampling", Sampling=Unfiltered),
        "Words are drawn as often",
        "A temperature of 0.5 squares",
        "At a temperature of 0",
        "Top-k 3 draws",
    )


def test_sampling_by_formulas_of_another_model():
    equal = torch.full((7,), 1 / 7)
    assert starting(failing("sampling", p=equal), "The lines above compute")


def test_sampling_of_a_model_that_is_never_sure():
    equal = torch.full((1, 5), 0.2)
    assert starting(failing("sampling", sure=equal), "Top-p keeps fewer words")


def test_generation(monkeypatch):
    """A cache begins with the last word of the text, and all heads have keys and values of their own."""
    start = LanguageModel.start

    def start_at_last_word(self, text, kind, capacity):
        return start(self, text[:, -1:], kind, capacity=capacity)

    def config_without_groups(**settings):
        return LanguageConfig(**settings | {"kv_heads": 8})

    monkeypatch.setattr(LanguageModel, "start", start_at_last_word)
    assert starting(
        failing("generation", LanguageConfig=config_without_groups),
        "A step with a cache gives",
        "With a cache each word",
        "The cache keeps 2",
    )


def test_grouped():
    """Heads read key/value heads in turn, an einsum reads other values, and random heads stand for means."""

    def resized_at_random(tensor, before, after, method):
        heads = resized(tensor, before, after, method)
        return torch.randn_like(heads) * tensor.std() if method == "mean" else heads

    broken = failing(
        "grouped",
        kv_head=Computed(lambda h, G: h % G),
        without_axis=Computed(
            lambda weights, v: torch.einsum("bhqk,bkd->bhqd", weights, v.flip(1))
        ),
        resized=resized_at_random,
    )
    assert starting(
        broken,
        "Query head h reads",
        "Multi-query attention gives",
        "If the heads of a group",
        "If they differ",
    )


def test_grouped_costs(monkeypatch):
    """A cache has all heads, and models with fewer heads are as good."""
    rows = changed_report(monkeypatch, "generation")["rows"]
    rows[-1]["uptrained"] = 1.9  # of one key/value head
    rows[0]["uptrained"] = 3.8  # of four

    def nbytes_of_all_heads(kv_heads, batch=1):
        layer = rg.MultiHeadAttention(256, 8)
        return layer.new_cache(batch, "static", capacity=2048).nbytes

    assert starting(
        failing("grouped", cache_nbytes=nbytes_of_all_heads),
        "The cache shrinks",
        "In the same memory",
        "Fewer key/value heads cost",
        "Further training recovers",
    )


def test_latent(monkeypatch):
    """Each head has a latent, latents are smaller, a form reads words backwards, and a plan is that of a prompt."""
    layer_type = rg.LatentAttention

    def with_latents_by_head(dim, heads, latent_dim, **sizes):
        return layer_type(dim, heads, latent_dim=latent_dim * heads // 8, **sizes)

    monkeypatch.setattr(rg, "LatentAttention", with_latents_by_head)
    broken = failing(
        "latent",
        LATENT_DIM=96,
        absorbed=Computed(lambda latent_layer, x: latent_layer(x.flip(1), form="absorbed")),
        step=Computed(lambda latent_layer: latent_layer.plan(batch=1, q_len=2048)),
    )
    assert starting(
        broken,
        "The cache of latents",
        "With the proportions",
        "Absorbed and expanded",
        "A step of decoding",
    )


def test_latent_models_of_other_sizes():
    fewer = Computed(lambda with_latents, model: with_latents(model, latent_dim=15, rope_dim=16))
    assert starting(failing("latent", same=fewer), "A grouped-query model")
    as_many = Computed(lambda with_latents, model: with_latents(model, latent_dim=16, rope_dim=16))
    assert starting(failing("latent", half=as_many), "With half of them")


def test_windows(monkeypatch):
    """Windows are wider than they say, only one layer counts, and a prediction is short by one word."""
    claims = ("reach(layers) is how far", "The patterns predict", "Each layer extends the reach")

    def widened(dependence):
        return lambda pattern, layers: dependence(pattern | p.SlidingWindow(12), layers)

    def of_one_layer(dependence):
        return lambda pattern, layers: dependence(pattern, 1)

    assert starting(failing("windows", dependence=Computed(widened)), *claims)
    assert starting(failing("windows", dependence=Computed(of_one_layer)), *claims)

    reach = Pattern.reach

    def shorter_reach(self, layers=1):
        right = reach(self, layers)
        return Reach((right.back or 1) - 1, right.ahead)

    monkeypatch.setattr(Pattern, "reach", shorter_reach)
    assert starting(failing("windows"), "reach(layers) is how far")


def test_sparse_without_patterns(monkeypatch):
    """Attention ignores the pattern, and counts are larger by one pair."""

    def one_pair_more(count_pairs):
        return lambda pattern, n: count_pairs(pattern, n) + 1

    attention = rg.attention
    monkeypatch.setattr(rg, "attention", lambda q, k, v, pattern: attention(q, k, v))
    assert starting(
        failing("sparse", count_pairs=Computed(one_pair_more)),
        "Sparse attention gives",
        "The counts are",
        "A window keeps",
        "4 times as many",
    )


def test_sparse_with_other_patterns():
    """A pattern of all pairs stands for the strided one, windows are narrower, and there are more random words."""

    def broken_patterns(n):
        window = p.SlidingWindow(6)
        global_word = p.GlobalTokens([0])
        random_words = p.RandomBlocks(15, block=1, seed=0)
        return {
            "window": window,
            "random": random_words,
            "window + random": window | random_words,
            "BigBird": window | global_word | random_words,
            "strided": p.Full(),
        }

    def broken(patterns_for):
        return lambda n: patterns_for(n) | broken_patterns(n)

    assert starting(
        failing("sparse", patterns_for=Computed(broken)),
        "Strided and fixed keep",
        "4 times as many",
        "Two layers suffice",
        "A window keeps",
        "A window alone needs",
        "Random words alone never",
    )


def test_sparse_without_random_words():
    def window_alone(patterns_for):
        return lambda n: patterns_for(n) | {"window + random": p.SlidingWindow(8)}

    broken = failing("sparse", patterns_for=Computed(window_alone))
    assert starting(broken, "With 3 random words")


def test_choosing_the_wrong_keys():
    """The smallest scores are chosen, and no key points away from the query."""

    def smallest_scores(weights):
        return lambda count: p.ChosenKeys(weights.topk(count, largest=False).indices)

    broken = failing(
        "choosing",
        largest_scores=Computed(smallest_scores),
        pointing_away=Computed(lambda query: query / 2),
    )
    assert starting(broken, "Of all choices of so", "Attention to chosen keys", "A matching key is")


def test_choosing_without_effect(monkeypatch):
    """Attention reads all keys, an indexer learns nothing, and a trained one recalls half."""
    indexer = changed_report(monkeypatch, "choosing")["lightning indexer"]
    indexer["accuracy"] = [accuracy / 2 for accuracy in indexer["accuracy"]]
    broken = failing(
        "choosing",
        z_chosen=Computed(lambda q, leaf_k, leaf_v: 3 * rg.attention(q, leaf_k, leaf_v)),
        optimiser=Computed(lambda indexed: torch.optim.Adam(indexed.chooser.parameters(), lr=0.0)),
    )
    assert starting(
        broken,
        "The output moves",
        "Attention to chosen keys",
        "A key that no query chose",
        "An indexer learns",
        "Trained with a quarter",
    )


def test_choosing_with_blocks_that_recall_everything(monkeypatch):
    figures = changed_report(monkeypatch, "choosing")
    for name in ("MoBA", "NSA"):
        figures[name]["accuracy"] = figures["all keys"]["accuracy"]
    assert starting(failing("choosing"), "So do MoBA and NSA")


def test_linear():
    """The right order computes everything twice and adds a little, and softmax stands for LinearTransformer."""

    def twice(right_order):
        return lambda q, k, v: (right_order(q, k, v) + right_order(q, k, v)) / 2 + 0.001

    broken = failing(
        "linear",
        right_order=Computed(twice),
        z_regard=Computed(lambda q, k, v: rg.attention(q, k, v)),
    )
    assert starting(
        broken,
        "Both orders give",
        "regard's LinearTransformer",
        "Both orders cost",
        "The result differs",
    )


class ForgetfulState:
    """A state that begins again with each word, and grows."""

    def __init__(self, *sizes, **options):
        self.new_state = partial(RecurrentState, *sizes, **options)
        self.nbytes = 0

    def attend(self, q, k, v, pattern):
        self.nbytes += 1
        return self.new_state().attend(q, k, v, pattern=pattern)


def test_linear_without_sums():
    """The right order saves nothing, and a state keeps no sum."""
    broken = failing(
        "linear",
        right_order=Computed(lambda left_order: left_order),
        RecurrentState=ForgetfulState,
    )
    assert starting(broken, "Twice as many words", "Decoding word by word", "These sums")


def test_overwriting():
    """The rules have other decays, and half of what is known is corrected."""

    def remember(rule, keys, values, b=1.0):
        S = torch.zeros(keys.shape[1], values.shape[1], dtype=keys.dtype)
        for k, v in zip(keys, values, strict=True):
            S = rule.a * S
            known = S.T @ k / 2 if rule.corrects else 0
            S = S + b * torch.outer(k, v - known)
        return S

    def other_decays(RULES, MemoryRule):
        adds = MemoryRule(0.9, corrects=False)
        forgets = MemoryRule(1.0, corrects=False)
        return RULES | {"adds": adds, "forgets": forgets}

    assert starting(
        failing("overwriting", RULES=Computed(other_decays), remember=remember),
        "A memory that only adds",
        "Forgetting prefers",
        "Forgetting also weakens",
        "Correcting returns",
        "Correcting is a step",
        "regard computes",
    )


def test_overwriting_with_similar_keys():
    """A strength counts twice, keys are not at right angles, and a decay does not empty the memory."""

    def squared_strength(remember):
        return lambda rule, keys, values, b=1.0: remember(rule, keys, values, b**2)

    def similar_keys(normal, SEED, D):
        return lambda count: torch.nn.functional.normalize(normal(SEED + 1, count, D), dim=-1)

    broken = failing(
        "overwriting",
        remember=Computed(squared_strength),
        keys_for=Computed(similar_keys),
        whole=Computed(lambda read_with_regard, gates: read_with_regard("does both", gates)),
    )
    assert starting(
        broken, "With a strength of 0.5", "8 keys at right angles", "A decay of 0 empties"
    )


def test_approximations():
    """More features change nothing, other mechanisms stand for two, and LSH reads everything or half."""

    def lsh_of_all_words(chunk, buckets, rounds, seed=0):
        return LSH(256, 2, 1) if chunk == 32 else LSH(chunk, buckets, rounds, seed)

    broken = failing(
        "approximations",
        performers=[Performer(16)] * 4,
        MECHANISMS=Computed(lambda MECHANISMS: MECHANISMS | {"linear transformer": Performer(64)}),
        LSH=lsh_of_all_words,
        in_one_chunk=LSH(128, 2, 1),
    )
    assert starting(
        broken,
        "The error of Performer and RFA",
        "The linear transformer estimates",
        "LSH needs",
        "LSH computes a text",
    )


def test_approximations_of_anything(monkeypatch):
    """Every draw is the same, Performer reads flat weights only, and Linformer mixes with random numbers."""

    def mix_anything(rank, count):
        generator = torch.Generator().manual_seed(0)
        mixtures = torch.randn(1, rank, count, generator=generator, dtype=torch.float64)
        return Linformer(count, rank, "keys_and_values"), {"projection": mixtures}

    monkeypatch.setattr(regard_lab.teaching.approximating, "means_of_neighbours", mix_anything)
    monkeypatch.setattr(Performer, "redrawn", lambda self, seed: self)
    flat_only = Computed(lambda kind, text, flat: flat if kind == "sharp" else text)
    assert starting(
        failing("approximations", text=flat_only),
        "Both estimate",
        "Performer suits flat weights",
        "Linformer needs keys",
        "With as many mixtures",
    )


def test_complexity_of_other_patterns():
    def other_patterns(patterns_for):
        def broken(n):
            strided = p.Causal() & p.Strided(16)
            others = {"causal": p.CausalWindow(64), "strided": strided, "window": p.Full()}
            return patterns_for(n) | others

        return broken

    assert starting(
        failing("complexity", patterns_for=Computed(other_patterns)),
        "Twice as many words",
        "The pairs of strided",
        "The work of recurrent",
        "Self-attention, global",
        "For windows and convolutions",
    )


def test_complexity_of_other_times(monkeypatch):
    """Times grow as promised, a GRU is never faster, and it skips a word."""
    figures = changed_report(monkeypatch, "complexity")
    for row in figures.values():
        row["exponent"] = row["promised"]
    figures["gru"]["cheaper_from"] = "not up to 16,384"

    def skip_a_word(count_steps):
        return lambda name, n, seed: {"path": count_steps(name, n, seed)["path"] - 1}

    assert starting(
        failing("complexity", count_steps=Computed(skip_a_word)),
        "For windows",
        "Measured times give",
        "On one CPU thread",
    )
