"""Nothing is lost between text and ids, and words cover every id once."""

import ctypes
import gc
import json
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import ArgumentError, CheckpointError, DataError, MissingPackageError
from regard.packages import install_line
from regard_lab.text import BEGIN, END, PAD, UNKNOWN, Tokeniser, normalise
from regard_lab.text.vocabularies import Vocabulary

LINES = [
    "The animal didn't cross the street because it was too tired.",
    "Das Tier überquerte die Straße nicht, weil es zu müde war.",
    "Life is short, eat dessert first! 😀 😀",
    "<pad> <unknown> <begin> <end> <end> <end><end>",
    "naïve café, die Straße überquerte: 12 × 12 = 144",
] * 4
TRAINED = {kind: Tokeniser.train(LINES, vocab_size=420, kind=kind) for kind in ("bpe", "character")}

# Every text: emoji with joiners, right to left, combining marks, control characters, lone surrogates.
unusual = st.sampled_from(
    ["👩\u200d🚀", "❤️", "🇩🇪", "1️⃣", "שלום", "مرحبا", "e\u0301\u0327", "’", "\u00a0", "\u2028", "\r\n", "\ud83d"]
)
texts = st.lists(st.one_of(st.text(st.characters(), max_size=12), unusual)).map("".join)


@pytest.fixture(params=["bpe", "character"])
def tokeniser(request):
    """A tokeniser of each kind."""
    return TRAINED[request.param]


# --- round trips


@pytest.mark.parametrize("kind", TRAINED)
@settings(deadline=None, max_examples=200)
@given(texts)
def test_every_text_comes_back_normalised(kind, text):
    tokeniser = TRAINED[kind]
    ids = tokeniser.encode(text)
    assert tokeniser.decode(ids) == normalise(text)
    assert all(END < i < tokeniser.vocab_size for i in ids)


@settings(deadline=None, max_examples=200)
@given(texts)
def test_normalising_follows_its_definition_and_again_changes_nothing(text):
    once = normalise(text)
    assert normalise(once) == once
    assert once == " ".join(once.split())
    assert unicodedata.is_normalized("NFC", once)
    assert not set(once) & set("’‘ʼ\u00a0\t\n")
    once.encode("utf-8")


def test_a_text_of_nothing_has_no_ids(tokeniser):
    assert tokeniser.encode("") == tokeniser.encode(" \u00a0\n") == []
    assert tokeniser.decode([]) == ""
    assert tokeniser.words([]) == []


@pytest.mark.parametrize("name", ["<pad>", "<unknown>", "<begin>", "<end>"])
def test_text_that_spells_a_special_is_ordinary_text(tokeniser, name):
    for text in (name, f"a {name} b", name * 3):
        ids = tokeniser.encode(text)
        assert not {PAD, UNKNOWN, BEGIN, END} & set(ids)
        assert tokeniser.decode(ids) == text


def test_a_vocabulary_with_a_merge_that_spells_a_special_still_never_encodes_it():
    letters = "<end>"
    merges = [[letters[:i], letters[i]] for i in range(1, len(letters))]
    saved = json.loads(TRAINED["bpe"].to_json()) | {"merges": merges}
    tokeniser = Tokeniser.from_json(json.dumps(saved))
    assert END not in tokeniser.encode("<end>")
    assert tokeniser.decode(tokeniser.encode("<end>")) == "<end>"


def test_decoding_leaves_specials_out_and_replaces_broken_bytes(tokeniser):
    ids = tokeniser.encode("hello Straße")
    assert tokeniser.decode([BEGIN, *ids[:3], PAD, UNKNOWN, *ids[3:], END, PAD]) == "hello Straße"
    whole = TRAINED["character"].encode("中")  # never seen: a space and three bytes
    assert TRAINED["character"].decode(whole[:2]) == "\ufffd"


def test_the_first_word_is_the_same_piece_as_any_later_one():
    tokeniser = TRAINED["bpe"]
    (the,) = tokeniser.encode("the")
    assert tokeniser.encode("the street") == [the, *tokeniser.encode("street")]


def test_a_word_learned_at_the_start_of_lines_is_one_piece_with_its_space():
    tokeniser = Tokeniser.train(["street"] * 2, vocab_size=300)
    assert len(tokeniser.encode("street")) == 1
    assert len(tokeniser.encode("street street")) == 2


def test_characters_are_one_piece_each():
    tokeniser = TRAINED["character"]
    assert tokeniser.pieces(tokeniser.encode("Straße 😀")) == ["␣", *"Straße", "␣", "😀"]


@pytest.mark.parametrize("bad", [-1, 10**6, 420])
def test_an_unknown_id_is_refused(tokeniser, bad):
    for ask in (tokeniser.decode, tokeniser.pieces, tokeniser.words):
        with pytest.raises(
            ArgumentError, match=f"id {bad} is outside this tokeniser's vocabulary, 0 to {tokeniser.vocab_size - 1}"
        ):
            ask([5, bad])


def test_only_one_string_is_encoded(tokeniser):
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


def test_half_a_character_does_not_shift_the_words_after_it():
    tokeniser = TRAINED["character"]
    half = tokeniser.encode("中")[:2]  # a space and one byte of three
    street = tokeniser.encode("street")[1:]
    assert tokeniser.words([*half, *street]) == [("\ufffd", range(2)), ("street", range(2, 8))]


def test_specials_are_words_of_their_own(tokeniser):
    ids = [BEGIN, *tokeniser.encode("tired."), END, PAD, PAD]
    words = tokeniser.words(ids)
    assert [word for word, _ in words] == ["<begin>", "tired", ".", "<end>", "<pad>", "<pad>"]
    assert words[0][1] == range(1)
    assert words[-1][1] == range(len(ids) - 1, len(ids))


@pytest.mark.parametrize("kind", TRAINED)
@settings(deadline=None, max_examples=200)
@given(st.data())
def test_words_cover_every_position_once_whatever_the_ids(kind, data):
    tokeniser = TRAINED[kind]
    ids = data.draw(st.lists(st.integers(0, tokeniser.vocab_size - 1)))
    words = tokeniser.words(ids)
    assert [at for _, positions in words for at in positions] == list(range(len(ids)))
    assert all(word for word, _ in words)
    assert len(tokeniser.pieces(ids)) == len(ids)
    assert all(tokeniser.pieces(ids))


@settings(deadline=None)
@given(texts)
def test_words_together_spell_the_text(text):
    tokeniser = TRAINED["bpe"]
    words = tokeniser.words(tokeniser.encode(text))
    assert "".join(word for word, _ in words) == normalise(text).replace(" ", "")


def test_pieces_are_readable():
    tokeniser = TRAINED["bpe"]
    assert tokeniser.pieces([*tokeniser.encode("the street."), END]) == ["the", "street", ".", "<end>"]
    assert tokeniser.pieces(tokeniser.encode("🦄"))[-1] == "\\x84"


# --- learning


@pytest.mark.parametrize("kind", TRAINED)
def test_the_same_lines_give_the_same_json(kind):
    again = Tokeniser.train(iter(LINES), vocab_size=420, kind=kind)
    assert again.to_json() == TRAINED[kind].to_json()
    assert again == TRAINED[kind]
    assert hash(again) == hash(TRAINED[kind])


def test_another_process_learns_the_same_vocabulary():
    script = "import sys, json; from regard_lab.text import Tokeniser; " + (
        "sys.stdout.write(Tokeniser.train(json.loads(sys.stdin.read()), 420).to_json())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(LINES), capture_output=True, text=True, check=True
    )
    assert done.stdout == TRAINED["bpe"].to_json()


def test_vocab_size_is_a_limit_and_counts_specials(tokeniser):
    smaller = Tokeniser.train(LINES, vocab_size=270, kind=tokeniser.kind)
    assert smaller.vocab_size <= 270
    assert Tokeniser.train(LINES, vocab_size=300).vocab_size == 300
    assert Tokeniser.train(LINES, vocab_size=260).vocab_size == 260


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
    with pytest.raises(MissingPackageError, match=r"needs the package 'tokenizers'.*pip install '.*\[lab\]'"):
        Tokeniser.train(LINES, vocab_size=400)


@pytest.mark.parametrize(
    ("recorded", "origin"),
    [
        ('{"url": "file://{there}", "dir_info": {}}', "{there}"),
        ('{"url": "file://{there}/gone", "dir_info": {}}', "regard"),
        ('{"url": "https://example.org/regard.whl"}', "regard"),
        ("not json", "regard"),
        (None, "regard"),
    ],
)
def test_extras_are_installed_from_where_regard_came_from(recorded, origin, tmp_path, monkeypatch):
    there = tmp_path / "my clone"
    there.mkdir()

    class Installed:
        def read_text(self, name):
            assert name == "direct_url.json"
            return recorded and recorded.replace("{there}", str(there).replace(" ", "%20"))

    monkeypatch.setattr("regard.packages.distribution", lambda name: Installed())
    expected = origin.replace("{there}", str(there))
    assert install_line("lab") == f"pip install '{expected}[lab]'"


# --- saving


def test_json_gives_the_same_tokeniser(tokeniser):
    text = tokeniser.to_json()
    text.encode("ascii")
    again = Tokeniser.from_json(text)
    assert again == tokeniser
    assert again.to_json() == text
    assert [again.encode(line) for line in LINES] == [tokeniser.encode(line) for line in LINES]


def test_tokenisers_differ_by_kind_and_by_merges():
    assert TRAINED["bpe"] != TRAINED["character"]
    assert TRAINED["bpe"] != Tokeniser.train(LINES, vocab_size=300)
    assert TRAINED["bpe"] != "bpe"


def changed(**change):
    return json.dumps(json.loads(TRAINED["bpe"].to_json()) | change)


@pytest.mark.parametrize(
    "damaged",
    [
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
        changed(merges=None),
        changed(merges={}),
        changed(merges=[["a"]]),
        changed(merges=[["a", 3]]),
        changed(merges=["ab"]),
        changed(merges=[["a", ""]]),
        changed(merges=[["a", " "]]),
        changed(merges=[["a", "b"], ["a", "b"]]),
        changed(merges=[["e", "r"], ["ab", "c"], ["a", "b"]]),
        changed(merges=[["<pad>", "a"]]),
        changed(extra=1),
        None,
        b"\xff",
    ],
)
def test_a_damaged_tokeniser_is_refused(damaged):
    with pytest.raises(CheckpointError, match=r"tokeniser is (not valid JSON|damaged or not one of regard's)"):
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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the allocator of the C library of Linux")
def test_engines_that_are_thrown_away_leave_no_memory():
    class Numbers(ctypes.Structure):
        names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
        _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

    tell = ctypes.CDLL(None).mallinfo2
    tell.restype = Numbers
    texts = [f"sentence number {n} of a longer text" for n in range(60)]
    vocabulary = Vocabulary.learn(texts, 300, "bpe")

    def used(times):
        for _ in range(times):
            vocabulary.engine().encode_batch(texts)
        gc.collect()
        return tell().uordblks

    used(5)
    grown = []  # memory of other tests of this process may come and go: a leak is in every round
    for _ in range(4):
        before = used(5)
        grown.append((used(40) - before) / 40)
    assert min(grown) < 4096
