"""Scripts without spaces between words: they are noticed, and their words are counted letter by letter."""

from __future__ import annotations

import pytest

from regard_lab.text import SeenWords
from regard_lab.text.seen_words import remark_on_scripts, split_unspaced
from regard_lab.training.recipes import LanguageModelTraining, TranslationTraining

CHINESE, THAI, KOREAN = "这只动物没有过马路，因为它太累了。", "สัตว์ไม่ได้ข้ามถนน", "동물은 길을 건너지 않았다."
ENGLISH = "The animal didn't cross the street."


@pytest.mark.parametrize("text", [CHINESE, THAI, "動物は道を渡らなかった。", "សត្វ"])
def test_text_without_spaces_is_noticed(text):
    remark = remark_on_scripts([ENGLISH] * 3 + [text], "bpe")
    assert remark.startswith("25% of the lines have no spaces between words")
    assert "--tokeniser character" in remark
    assert text[:4] in remark


@pytest.mark.parametrize(
    ("lines", "kind"),
    [([ENGLISH, KOREAN], "bpe"), ([CHINESE], "character"), ([CHINESE], "byte"), ([ENGLISH] * 30 + [CHINESE], "bpe"),
     ([], "bpe"), (["他 is a Chinese letter", "..."], "bpe")],
)  # fmt: skip
def test_other_text_is_not_remarked_on(lines, kind):
    assert remark_on_scripts(lines, kind) is None


def test_letters_keep_their_marks_and_other_words_stay_whole():
    parts = list(split_unspaced(f"{THAI}cats"))
    assert "".join(parts) == f"{THAI}cats"
    assert parts[-1] == "cats"
    assert parts[0] == "สั"
    assert list(split_unspaced("didn't")) == ["didn't"]


def test_an_unknown_word_of_chinese_is_a_letter_and_not_a_sentence():
    seen = SeenWords.of([CHINESE, ENGLISH])
    assert seen.unknown("这只狗过马路。 The dog") == ("狗", "dog")


def test_trainings_say_it(tmp_path):
    (tmp_path / "t.txt").write_text(f"{CHINESE}\n" * 60)
    rows = [f"{ENGLISH} {n}\t{CHINESE}{n}" for n in range(60)]
    (tmp_path / "p.tsv").write_text("\n".join(rows))
    for recipe, name, more in ((LanguageModelTraining, "t.txt", {"block": 16}), (TranslationTraining, "p.tsv", {})):
        for kind in ("bpe", "character"):
            told = []
            config = recipe.Config(data=(str(tmp_path / name),), tokeniser=kind, dim=16, heads=2, layers=1, **more)
            recipe(config, tell=told.append).prepare()
            assert any("no spaces between words" in line for line in told) == (kind == "bpe")
