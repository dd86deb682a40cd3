"""Sentence pairs of message catalogues: what is read, how they are split, and what the reports say."""

import gettext
import io
import struct

import pytest

from benchmarks import every_model, real_pairs
from benchmarks import program_messages as messages


def catalogue(entries: dict[str, str], order: str = "<") -> bytes:
    """A compiled catalogue: seven numbers, two tables of lengths and places, and the texts, each closed by a zero."""
    pairs = sorted((source.encode(), target.encode()) for source, target in entries.items())
    place = 28 + 16 * len(pairs)
    tables: list[bytes] = []
    texts = b""
    for side in (0, 1):
        for pair in pairs:
            tables.append(struct.pack(f"{order}2I", len(pair[side]), place + len(texts)))
            texts += pair[side] + b"\0"
    numbers = (messages.MAGIC, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, 0)
    return struct.pack(f"{order}7I", *numbers) + b"".join(tables) + texts


ENTRIES = {"": "Content-Type: text/plain; charset=UTF-8\n", "open %s": "%s öffnen", "menu\4Close it": "Schließen",
           "%d file\0%d files": "%d Datei\0%d Dateien"}  # fmt: skip


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_catalogue_is_read_in_both_byte_orders_as_gettext_reads_it(order):
    content = catalogue(ENTRIES, order)
    found = dict(messages.read_catalogue(content))
    assert found == {"open %s": "%s öffnen", "Close it": "Schließen", "%d file": "%d Datei"}
    peer = gettext.GNUTranslations(io.BytesIO(content))
    assert peer.gettext("open %s") == found["open %s"]
    assert peer.pgettext("menu", "Close it") == found["Close it"]


def test_messages_of_several_lines_or_columns_and_lists_of_names_are_left_out(tmp_path):
    (tmp_path / "iso_639.mo").write_bytes(catalogue({"German": "Deutsch"}))
    lines = {"two\nlines": "zwei\nZeilen", "--all   show all": "--all   alles", "one line": "eine Zeile", "%d": "%d"}
    (tmp_path / "tool.mo").write_bytes(catalogue(lines))
    assert messages.read_messages(tmp_path) == [messages.Message("tool", "one line", "eine Zeile")]


def test_no_program_and_no_message_of_the_test_is_in_the_training():
    made = [
        messages.Message(program, f"{program} says {n}", "x")
        for program in ("tar", "sed", "git", "apt")
        for n in range(9)
    ]
    made += [messages.Message("tar", "Out of Memory.", "x"), messages.Message("git", "out of memory", "x")]
    parts = messages.split_by_program(made)
    programs = {part: {one.program for one in chosen} for part, chosen in parts.items()}
    assert programs == {"train": {"git"}, "valid": {"apt"}, "test": {"tar", "sed"}}
    assert "Out of Memory." not in {one.source for one in parts["test"]}  # git says it too


def test_a_random_split_is_a_function_of_the_source():
    made = [messages.Message("git", f"message {n}", "x") for n in range(4_000)]
    first, again = messages.split_by_source(made), messages.split_by_source(made[::-1])
    for part, chosen in first.items():
        assert {one.source for one in chosen} == {one.source for one in again[part]}
    assert 140 < len(first["test"]) < 260


def record(bleu, exact, seconds):
    scores = {"bleu": bleu, "chrf": 40.0, "exact_match": exact, "bleu_signature": "x"}
    return {"steps": 2_400, "cpu_seconds": seconds, "beam 1": scores, "beam 4": scores}


def test_the_report_of_real_pairs_has_a_row_for_each_run_that_is_there_and_for_copying():
    copied = {split: record(14.0, 0.05, 0)["beam 1"] for split in real_pairs.SPLITS}
    about = {
        "pairs": 9,
        "programs": 3,
        **{f"{split} {part}": 4 for split in real_pairs.SPLITS for part in ("train", "test")},
    }
    said = "\n".join(real_pairs.report({"programs-defaults": record(23.1, 0.07, 451.2)}, copied, about))
    assert "| programs that were never seen | defaults | 23.10 | +9.10 |" in said
    assert said.count("copying the source |") == 2
    assert "fixed by hand |" not in said


def test_the_report_of_every_model_names_what_misses_the_goal_and_what_is_not_measured():
    said = "\n".join(every_model.report({"transformer": record(99.0, 0.97, 300), "bahdanau": record(80.0, 0.6, 300),
                               "none": record(99.0, 0.95, 700)}))  # fmt: skip
    assert "Missed by: bahdanau, none." in said
    assert "Not measured yet: luong-dot, luong-general, luong-concat." in said
    kept = "\n".join(every_model.report(dict.fromkeys(every_model.STEPS, record(99.0, 0.97, 300))))
    assert "Each model of the table keeps it." in kept
    assert "Not measured" not in kept
