"""Nothing is lost between text and ids, words cover every id once, and a trimmed vocabulary has no unused piece."""

import json
import subprocess
import sys
import unicodedata
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regard.errors import ArgumentError, CheckpointError, DataError, MissingPackageError
from regard.packages import install_line
from regard_lab.decoding.loading import with_pieces
from regard_lab.models import SavedModel
from regard_lab.text import BEGIN, END, PAD, UNKNOWN, Tokeniser
from regard_lab.text.cleaning import drop_invisible, normalise
from regard_lab.text.vocabularies import BYTE_OF

LINES = [
    "The animal didn't cross the street because it was too tired.",
    "Das Tier überquerte die Straße nicht, weil es zu müde war.",
    "Life is short, eat dessert first! 😀 😀",
    "<pad> <unknown> <begin> <end> <end> <end><end>",
    "naïve café, die Straße überquerte: 12 × 12 = 144",
] * 4
TRAINED = {kind: Tokeniser.train(LINES, vocab_size=420, kind=kind) for kind in ("bpe", "character")}
TRIMMED = Tokeniser.train(LINES, vocab_size=420, trim=True)

# Every text: emoji with joiners, right to left, combining marks, control characters, lone surrogates.
unusual = st.sampled_from(
    [
        "👩\u200d🚀",
        "❤️",
        "🇩🇪",
        "1️⃣",
        "שלום",
        "مرحبا",
        "e\u0301\u0327",
        "’",
        "\u00a0",
        "\u2028",
        "\r\n",
        "\ud83d",
    ]
)
texts = st.lists(st.one_of(st.text(st.characters(), max_size=12), unusual)).map("".join)


@pytest.fixture(params=["bpe", "character"])
def tokeniser(request):
    """A tokeniser of each kind."""
    return TRAINED[request.param]


# --- round trips


@pytest.mark.parametrize(
    "tokeniser", [*TRAINED.values(), TRIMMED], ids=["bpe", "character", "trimmed"]
)
@settings(deadline=None, max_examples=200)
@given(text=texts)
def test_every_text_comes_back_normalised(tokeniser, text):
    ids = tokeniser.encode(text)
    once = normalise(drop_invisible(text))
    assert tokeniser.decode(ids) == once
    assert all(END < i < tokeniser.vocab_size for i in ids)
    assert tokeniser.reads(once) == once == " ".join(once.split())
    assert unicodedata.is_normalized("NFC", once)
    assert not set(once) & set("’‘ʼ\u00a0\t\n")
    once.encode("utf-8")


HIDDEN = [
    # (what a person typed, what is read)
    ("ani\u00admal", "animal"),  # a soft hyphen
    ("ani\u200bmal", "animal"),
    ("ani\u2060mal\ufeff", "animal"),
    ("Auf\u200clage ani\u200d\u200bmal", "Auflage animal"),
    ("\u200eanimal\u202a\u2069", "animal"),  # marks of the direction
    ("שלום\u200f!", "שלום!"),
    # Here they are spelling.
    ("نمی\u200cخواهم", "نمی\u200cخواهم"),
    ("👩\u200d🚀", "👩\u200d🚀"),
    ("ภาษา\u200bไทย", "ภาษา\u200bไทย"),
]


@pytest.mark.parametrize(("typed", "read"), HIDDEN)
@pytest.mark.parametrize("kind", ["bpe", "character", "byte"])
def test_invisible_characters_split_no_word_in_training_or_reading(kind, typed, read):
    targets = [f"{read} sang"] * 3
    trained = Tokeniser.train([f"the {read} sang"] * 3, 420, kind, targets=targets)
    assert Tokeniser.train([f"the {typed} sang"] * 3, 420, kind, targets=targets) == trained

    tokenisers = [trained, Tokeniser.from_json(trained.to_json())]
    if kind != "byte":
        tokenisers.append(trained.extended(["x"], 3))
    for tokeniser in tokenisers:
        assert tokeniser.reads(typed) == read
        assert tokeniser.encode(f"the {typed} sang") == tokeniser.encode(f"the {read} sang")


def test_targets_keep_marks_of_the_direction_alone():
    tokeniser = Tokeniser.train(["a"], 420, targets=["ani\u00admal \u200fשלום\u200b"] * 3)
    assert tokeniser == Tokeniser.train(["a"], 420, targets=["animal \u200fשלום"] * 3)
    ids = tokeniser.encode_target("ani\u00admal \u200fשלום\u200b")
    assert tokeniser.decode(ids) == "animal \u200fשלום"


def test_a_tokeniser_of_an_earlier_version_reads_invisible_characters_as_it_learned_them():
    old = Tokeniser.train(["the ani\u00admal"] * 3, 420, keep_invisible=True)
    assert "without_invisible" not in json.loads(old.to_json())
    for tokeniser in (old, Tokeniser.from_json(old.to_json()), old.extended(["x"], 3)):
        assert tokeniser.decode(tokeniser.encode("the ani\u00admal")) == "the ani\u00admal"
        assert tokeniser.reads("ani\u00admal") == "ani\u00admal"
    exact = Tokeniser.train(["the ani\u00admal"] * 3, 420, verbatim=True)
    assert exact.decode(exact.encode("ani\u00admal")) == "ani\u00admal"
    assert exact.reads("ani\u00admal") == "ani\u00admal"


def test_a_text_of_nothing_has_no_ids(tokeniser):
    assert tokeniser.encode("") == tokeniser.encode(" \u00a0\n") == []
    assert tokeniser.decode([]) == ""
    assert tokeniser.words([]) == []


def test_text_that_spells_a_special_is_ordinary_text_even_to_a_merge_of_its_letters(tokeniser):
    letters = "<end>"
    merges = [[letters[:i], letters[i]] for i in range(1, len(letters))]
    merged = Tokeniser.from_json(changed(merges=merges))
    for name in ("<pad>", "<unknown>", "<begin>", "<end>"):
        for text in (name, f"a {name} b", name * 3):
            for reader in (tokeniser, merged):
                ids = reader.encode(text)
                assert not {PAD, UNKNOWN, BEGIN, END} & set(ids)
                assert reader.decode(ids) == text


def test_decoding_leaves_specials_out(tokeniser):
    ids = tokeniser.encode("hello Straße")
    assert tokeniser.decode([BEGIN, *ids[:3], PAD, UNKNOWN, *ids[3:], END, PAD]) == "hello Straße"


def test_an_unknown_id_and_a_list_of_texts_are_refused(tokeniser):
    last = tokeniser.vocab_size - 1
    for bad in (-1, last + 1):
        for method in (tokeniser.decode, tokeniser.pieces, tokeniser.words):
            with pytest.raises(
                ArgumentError, match=f"id {bad} is outside this tokeniser's vocabulary, 0 to {last}"
            ):
                method([5, bad])
    with pytest.raises(ArgumentError, match="not a list"):
        tokeniser.encode(["a"])


# --- words and pieces


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cross the street.", ["cross", "the", "street", "."]),
        ("didn’t, because", ["didn't", ",", "because"]),
        ("the 'big' dog's", ["the", "'", "big", "'", "dog's"]),
        ("well-known (too)!", ["well", "-", "known", "(", "too", ")!"]),
        ("ok 👩\u200d🚀❤️!", ["ok", "👩\u200d🚀❤️", "!"]),
        ("e\u0301\u0327 نمی\u200cخواهم", [normalise("e\u0301\u0327"), "نمی\u200cخواهم"]),
        ("<end>", ["<", "end", ">"]),
    ],
)
def test_words_are_what_a_person_reads(tokeniser, text, expected):
    assert [word for word, _ in tokeniser.words(tokeniser.encode(text))] == expected


def test_half_a_character_is_replaced_and_does_not_shift_the_words_after_it():
    tokeniser = TRAINED["character"]
    half = tokeniser.encode("中")[:2]  # a space and one byte of three
    assert tokeniser.decode(half) == "\ufffd"
    street = tokeniser.encode("street")[1:]
    assert tokeniser.words([*half, *street]) == [("\ufffd", range(2)), ("street", range(2, 8))]


def test_specials_are_words_of_their_own(tokeniser):
    words = tokeniser.words([BEGIN, *tokeniser.encode("tired."), END, PAD, PAD])
    assert [word for word, _ in words] == ["<begin>", "tired", ".", "<end>", "<pad>", "<pad>"]


@pytest.mark.parametrize("kind", TRAINED)
@settings(deadline=None, max_examples=200)
@given(st.data())
def test_words_cover_every_position_once_whatever_the_ids(kind, data):
    tokeniser = TRAINED[kind]
    ids = data.draw(st.lists(st.integers(0, tokeniser.vocab_size - 1)))
    words = tokeniser.words(ids)
    positions = []
    for word, of_word in words:
        assert word
        positions += of_word
    assert positions == list(range(len(ids)))
    assert len(tokeniser.pieces(ids)) == len(ids)
    assert all(tokeniser.pieces(ids))


@settings(deadline=None)
@given(texts)
def test_words_together_spell_the_text(text):
    words = TRAINED["bpe"].words(TRAINED["bpe"].encode(text))
    assert "".join(word for word, _ in words) == normalise(drop_invisible(text)).replace(" ", "")


def test_pieces_are_readable():
    assert TRAINED["character"].pieces(TRAINED["character"].encode("Straße 😀")) == [
        "␣",
        *"Straße",
        "␣",
        "😀",
    ]
    tokeniser = TRAINED["bpe"]
    assert tokeniser.pieces([*tokeniser.encode("the street."), END]) == [
        "the",
        "street",
        ".",
        "<end>",
    ]
    assert tokeniser.pieces(tokeniser.encode("🦄"))[-1] == "\\x84"


# --- learning


def test_another_process_learns_the_same_vocabulary():
    script = (
        "import sys, json; from regard_lab.text import Tokeniser; "
        "sys.stdout.write(Tokeniser.train(json.loads(sys.stdin.read()), 420).to_json())"
    )
    assert run(script, json.dumps(LINES)) == TRAINED["bpe"].to_json()


def run(script, content=None):
    command = [sys.executable, "-c", script]
    return subprocess.run(command, input=content, capture_output=True, text=True, check=True).stdout


def test_what_cannot_be_learned_is_refused():
    with pytest.raises(ArgumentError, match="vocab_size is 259; give at least 260"):
        Tokeniser.train(LINES, vocab_size=259)
    with pytest.raises(ArgumentError, match="kind is 'unigram'; give one of 'bpe', 'character'"):
        Tokeniser.train(LINES, vocab_size=400, kind="unigram")
    with pytest.raises(ArgumentError, match="lines is one string"):
        Tokeniser.train("a b c", vocab_size=400)
    for nothing in ([], ["", " \u00a0"]):
        with pytest.raises(DataError, match="no text"):
            Tokeniser.train(nothing, vocab_size=400)


def test_a_missing_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        MissingPackageError, match=r"needs the package 'tokenizers'.*pip install '.*\[lab\]'"
    ):
        Tokeniser.train(LINES, vocab_size=400)


def test_extras_are_installed_from_where_regard_came_from(tmp_path, monkeypatch):
    clone = tmp_path / "my clone"
    clone.mkdir()
    of_clone = json.dumps({"url": f"file://{clone}".replace(" ", "%20"), "dir_info": {}})
    of_wheel = '{"url": "https://example.org/regard.whl"}'
    for recorded, origin in ((of_clone, clone), (of_wheel, "regard"), ("not json", "regard")):
        installed = SimpleNamespace(read_text={"direct_url.json": recorded}.__getitem__)
        monkeypatch.setattr(
            "regard.packages.distribution", lambda name, installed=installed: installed
        )
        assert install_line("lab") == f"pip install '{origin}[lab]'"


# --- saving


def test_json_and_the_same_lines_give_the_same_tokeniser(tokeniser):
    text = tokeniser.to_json()
    text.encode("ascii")
    for again in (
        Tokeniser.from_json(text),
        Tokeniser.train(iter(LINES), vocab_size=420, kind=tokeniser.kind),
    ):
        assert again == tokeniser
        assert hash(again) == hash(tokeniser)
        assert again.to_json() == text
        for line in LINES:
            assert again.encode(line) == tokeniser.encode(line)


def changed(tokeniser=TRAINED["bpe"], **change):
    return json.dumps(json.loads(tokeniser.to_json()) | change)


MERGES = (
    None,
    {},
    [["a"]],
    [["a", 3]],
    ["ab"],
    [["a", ""]],
    [["a", " "]],
    [["a", "b"], ["a", "b"]],
    [["e", "r"], ["ab", "c"], ["a", "b"]],
    [["<pad>", "a"]],
)
DAMAGED = (
    "",
    "{",
    "null",
    "[]",
    "[" * 100_000,
    TRAINED["bpe"].to_json()[:-1],
    TRAINED["bpe"].to_json() + "x",
    "{}",
    changed(format="regard tokeniser 2"),
    changed(format=None),
    changed(kind="unigram"),
    changed(kind=["bpe"]),
    changed(specials=["<end>", "<unknown>", "<begin>", "<pad>"]),
    changed(specials=["<pad>", "<unknown>", "<begin>"]),
    *(changed(merges=merges) for merges in MERGES),
    changed(extra=1),
    None,
    b"\xff",
    *(
        changed(TRIMMED, dropped=dropped)
        for dropped in ("the", ["not a piece"], [7], {"a": 1}, ["a"], None)
    ),
)


@pytest.mark.parametrize("damaged", DAMAGED)
def test_a_damaged_tokeniser_is_refused(damaged):
    with pytest.raises(
        CheckpointError, match=r"tokeniser is (not valid JSON|damaged or not one of regard's)"
    ):
        Tokeniser.from_json(damaged)


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 10**6), st.characters(max_codepoint=127))
def test_one_changed_character_is_refused_or_still_a_working_tokeniser(place, letter):
    text = TRAINED["bpe"].to_json()
    place %= len(text)
    try:
        loaded = Tokeniser.from_json(text[:place] + letter + text[place + 1 :])
    except CheckpointError:
        return
    assert loaded.decode(loaded.encode("Straße <end> 😀")) == "Straße <end> 😀"


def test_the_text_floor_imports_no_heavy_package():
    # A bare package stands in for regard itself, which needs torch.
    script = (
        "import sys, types, importlib.util; bare = types.ModuleType('regard'); "
        "bare.__path__ = importlib.util.find_spec('regard').submodule_search_locations; "
        "sys.modules['regard'] = bare; import regard_lab.text; "
        "print(sorted({'torch', 'numpy', 'tokenizers', 'sacrebleu'} & set(sys.modules)))"
    )
    assert run(script).strip() == "[]"


def test_only_pieces_that_no_training_line_uses_are_dropped():
    whole = TRAINED["bpe"]
    used = set()
    for line in LINES:
        used.update(whole.pieces(whole.encode(line)))
    assert 260 < TRIMMED.vocab_size < whole.vocab_size
    assert set(TRIMMED.pieces(range(260, TRIMMED.vocab_size))) <= used
    for line in LINES:
        assert TRIMMED.pieces(TRIMMED.encode(line)) == whole.pieces(whole.encode(line))


def test_a_dropped_piece_is_spelled_by_its_parts():
    tokeniser = Tokeniser.train(["streets"] * 3, vocab_size=300, trim=True)
    assert tokeniser.pieces(tokeniser.encode("streets")) == ["streets"]
    assert tokeniser.vocab_size == 261
    assert tokeniser.decode(tokeniser.encode("stree")) == "stree"
    untrimmed = Tokeniser.train(["streets"] * 3, vocab_size=300)
    assert len(tokeniser.encode("stree")) > len(untrimmed.encode("stree"))


SPACED = st.text(
    st.sampled_from("aß1_ .,;!?’\u00a0\u202f\u2003\t\n\x1c\x85\u180e\u200b\u200d\u0301😀-中   ")
)


# Runs of spaces are pieces of it.
WIDE = "It  is   tired ,  or  not  ."
OF_SPACES = Tokeniser.train(LINES, vocab_size=420, targets=[WIDE] * 4)


@pytest.mark.parametrize("tokeniser", [*TRAINED.values(), OF_SPACES], ids=[*TRAINED, "of spaces"])
@settings(deadline=None, max_examples=200)
@given(lines=st.lists(texts | SPACED, min_size=1))
@example(lines=[WIDE])
def test_a_tokeniser_that_keeps_words_encodes_as_one_that_does_not(tokeniser, lines):
    keeping = tokeniser.keeping_words()
    for line in [*lines, *lines]:
        assert keeping.encode(line) == tokeniser.encode(line)
        assert keeping.encode_target(line) == tokeniser.encode_target(line)
    assert tokeniser.keeping_words() is not keeping


@settings(deadline=None, max_examples=200)
@given(lines=st.lists(texts | SPACED, min_size=1))
@example(lines=[WIDE])
def test_pieces_in_no_encoding_of_a_text_are_unused(lines):
    lines = [line.encode("utf-8", "ignore").decode() for line in lines]
    vocabulary = OF_SPACES.vocabulary
    engine = vocabulary.engine()
    used = set()
    for line in lines:
        used.update(engine.encode(line, add_special_tokens=False).tokens)
    assert vocabulary.unused(lines) == frozenset(vocabulary.merged) - used - set(BYTE_OF)


TEXT = "A bird  sang.\n\n\tIt was   happy,\nand so \u00e9\u00e8 was the bird.\n" * 3
KINDS = ("bpe", "character", "byte")
TOKENISERS = {kind: Tokeniser.train([TEXT], 320, kind, verbatim=True) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_comes_back_as_it_stands(kind, text):
    tokeniser = TOKENISERS[kind]
    assert tokeniser.decode(tokeniser.encode(text)) == text
    assert tokeniser.decode(tokeniser.encode(text + TEXT)) == text + TEXT


def test_bytes_are_the_bytes_of_the_text_in_order():
    tokeniser = TOKENISERS["byte"]
    assert tokeniser.vocab_size == 260
    ids = tokeniser.encode(TEXT)
    raw = TEXT.encode()
    pairs = set(zip(ids, raw, strict=True))
    assert len(pairs) == len(set(ids)) == len(set(raw))


@pytest.mark.parametrize("kind", KINDS)
def test_lines_are_encoded_apart_and_a_verbatim_tokeniser_survives_its_file_and_differs_from_one_of_sentences(
    kind,
):
    tokeniser = TOKENISERS[kind]
    assert tokeniser.decode(tokeniser.encode("a\r\n\r\n b\u2028c")) == "a\r\n\r\n b\u2028c"
    ids_by_line = []
    for line in TEXT.splitlines(keepends=True):
        ids_by_line += tokeniser.encode(line)
    assert ids_by_line == tokeniser.encode(TEXT)
    again = Tokeniser.from_json(tokeniser.to_json())
    sentences = Tokeniser.train(TEXT.splitlines(), 320, kind)
    assert again == tokeniser != sentences
    assert '"verbatim"' not in sentences.to_json()
    assert (again.verbatim, Tokeniser.from_json(sentences.to_json()).verbatim) == (True, False)


def test_a_vocabulary_of_bytes_is_not_extended():
    with pytest.raises(ArgumentError, match="a vocabulary of bytes spells every text"):
        Tokeniser.train(["a"], 260, "byte").extended(["b"], 5)


@pytest.mark.parametrize("kind", ["bpe", "character"])
@pytest.mark.parametrize("trim", [False, True])
def test_an_extended_vocabulary_keeps_its_ids_and_gives_new_words_fewer_pieces_and_rows_of_their_mean(
    kind, trim
):
    words = ["the bird sang", "the dog ran", "a bird and a dog"] * 3
    old = Tokeniser.train(words, 290, kind, trim=trim)
    new = old.extended(["птица пела the bird", "собака пела"] * 3, 40)
    assert old.vocab_size < new.vocab_size <= old.vocab_size + 40
    assert new.vocabulary.pieces[: old.vocab_size] == old.vocabulary.pieces
    assert len(new.encode("птица пела")) < len(old.encode("птица пела"))
    text = "the bird пела, 🐦"
    assert new.decode(new.encode(text)) == text
    assert old.unknown_characters("пела, пёс") == Counter("пелапёс")
    assert set(new.unknown_characters("пел ё")) == {"ё"}
    assert Tokeniser.from_json(new.to_json()) == new
    table = torch.randn(old.vocab_size, 3)
    saved = SavedModel(
        {"vocab_size": old.vocab_size}, {"embedding.weight": table, "norm": table}, "toy", {}
    )
    wider = with_pieces(saved, old, new)
    assert wider.config == {"vocab_size": new.vocab_size}
    assert wider.state["norm"] is table
    rows = wider.state["embedding.weight"]
    assert torch.equal(rows[: old.vocab_size], table)
    for i in range(old.vocab_size, new.vocab_size):
        (spelled,) = old.vocabulary.spelled([new.vocabulary.pieces[i]])
        raw = b"".join(old.vocabulary.raw_pieces[old_id] for old_id in spelled)
        assert raw == new.vocabulary.raw_pieces[i]
        torch.testing.assert_close(rows[i], table[spelled].mean(0))
