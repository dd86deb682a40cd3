"""Readers of pairs make no pair from halves of two, and never unquote silently."""

import csv

import pytest

from regard.errors import DataError
from regard_lab.text import Pair, read_pairs
from regard_lab.text.documents import read_labelled
from regard_lab.text.tables import HALF_QUOTED

ROWS = [
    ("a plain row", "eine Zeile"),
    ('He said "no".', 'Er sagte "nein".'),
    ("a line\nbreak", "Zeile 0\r\nZeile 1"),
    ("one\nmore", "kein Umbruch"),
    ("none", "noch\nein Umbruch"),
    ("last", "letzte"),
]
TIDY = [Pair(" ".join(source.split()), " ".join(target.split())) for source, target in ROWS]


def write_table(path, quoting=csv.QUOTE_MINIMAL, header=None):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t", quoting=quoting).writerows([header, *ROWS] if header else ROWS)
    return path


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize("header", [None, ("source", "target")])
def test_no_pair_is_made_from_halves_of_a_quoted_row(tmp_path, quoting, header):
    path = write_table(tmp_path / "x.tsv", quoting, header)
    if header and quoting == csv.QUOTE_ALL:
        with pytest.raises(DataError, match=r"the header .* is quoted, .* rename it to x\.csv, whose quotes are read$"):
            read_pairs(path)
        return
    read = read_pairs(path)
    mark = '"' if quoting == csv.QUOTE_ALL else ""
    assert read.pairs == [
        Pair(f"{mark}a plain row{mark}", f"{mark}eine Zeile{mark}"),
        Pair('"He said ""no""."', '"Er sagte ""nein""."'),
        Pair(f"{mark}last{mark}", f"{mark}letzte{mark}"),
    ]
    assert read.dropped[HALF_QUOTED] == 3  # the lines that had two columns
    assert "look quoted, as csv and pandas write rows (see line " in read.report()
    assert "rename it to x.csv, whose quotes are read" in read.report()
    assert ("with the header source TAB target as its first line" in read.report()) == (header is None)


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_the_way_out_of_a_quoted_tsv_reads_every_row(tmp_path, quoting):
    read = read_pairs(write_table(tmp_path / "x.csv", quoting, ("source", "target")))
    assert (read.pairs, read.dropped, read.quoted) == (TIDY, {}, None)


def test_a_quoted_header_that_the_path_names_is_refused(tmp_path):
    write_table(tmp_path / "x.tsv", csv.QUOTE_ALL, ("English", "German"))
    with pytest.raises(DataError, match=r"is quoted, and quotes in a \.tsv are read as letters; rename it to x\.csv"):
        read_pairs(f"{tmp_path / 'x.tsv'}:english,german")


def test_stray_quotes_of_an_unquoted_table_are_letters(tmp_path):
    rows = [
        ('He said "no"', 'Er sagte "nein"'), ('"No," he said.', '"Nein", sagte er.'), ('"Yes."', '"Ja."'),
        ('the "a" and the "b"', 'das "a" und das "b"'), ("plain", "einfach"), ("more", "mehr"),
    ]  # fmt: skip
    path = tmp_path / "tatoeba.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8")
    read = read_pairs(path)
    assert read.pairs == [Pair(*row) for row in rows]
    assert (read.dropped, read.quoted) == ({}, None)


def test_a_row_with_an_unpaired_quote_at_an_edge_is_dropped_and_counted(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text('good\tgut\nbreak"\t"Zeile 0\nfine\tgut\nlast"\tletzte\n', encoding="utf-8")
    read = read_pairs(path)
    assert read.pairs == [Pair("good", "gut"), Pair("fine", "gut")]
    assert read.dropped == {HALF_QUOTED: 2}
    assert read.first_lines == {HALF_QUOTED: (str(path), 2)}
    assert "2 of 4 rows look quoted" in read.report()


def test_a_file_of_halves_alone_is_refused_with_the_way_out(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text('"a\nb"\t"c\nd"\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"none of 3 lines gives a pair .* rename it to x\.csv"):
        read_pairs(path)


def test_halves_are_no_labelled_texts(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text('good\tA bird.\nbad\t"It\nrained"\nbad\tIt snowed.\n', encoding="utf-8")
    labelled = read_labelled(path)
    assert [pair.source for pair in labelled.pairs] == ["A bird.", "It snowed."]
    assert "label TAB text" in labelled.report


@pytest.mark.parametrize("names", [("x.tsv",), ("x.csv",), ("x.en", "x.de"), ("x.jsonl",)])
def test_lines_that_end_with_a_carriage_return_alone_are_refused(tmp_path, names):
    content = {".tsv": "a\tb\rc\td\r", ".csv": "source,target\ra,b\rc,d", ".jsonl": '{"source": "a"}\r{"source": "b"}'}
    for name in names:
        (tmp_path / name).write_text(content.get(name[1:], "a b\rc d\r"), encoding="utf-8", newline="")
    with pytest.raises(DataError, match=r"carriage return alone; convert it with `tr '\\r' '\\n' < .*lines\."):
        read_pairs(*(tmp_path / name for name in names))


def test_a_carriage_return_inside_a_line_is_white_space_in_every_table(tmp_path):
    for name, header, mark in (("x.tsv", "", "\t"), ("x.csv", "source,target\n", ",")):
        path = tmp_path / name
        path.write_text(f"{header}a\rb{mark}c\n", encoding="utf-8", newline="")
        assert read_pairs(path).pairs == [Pair("a b", "c")]


def test_files_that_were_joined_without_a_line_end_give_no_joined_pair(tmp_path):
    for name in ("x.en", "x.de"):
        (tmp_path / name).write_text("\ufefffirst\nlast\ufeffnew first\n\ufeffmore\n", encoding="utf-8")
    read = read_pairs(tmp_path / "x.en", tmp_path / "x.de")
    assert read.pairs == [Pair("first", "first"), Pair("more", "more")]
    assert read.dropped == {"with a byte order mark inside": 1}
    (tmp_path / "x.tsv").write_text("a\tb\ufeffc\td\ne\tf\n", encoding="utf-8")
    assert read_pairs(tmp_path / "x.tsv").pairs == [Pair("e", "f")]


def test_parallel_files_that_are_shifted_by_an_empty_line_are_refused(tmp_path):
    (tmp_path / "x.en").write_text("a\nb\nc\n", encoding="utf-8")
    (tmp_path / "x.de").write_text("A\n\nB\nC\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"has 3 lines but .* has 4"):
        read_pairs(tmp_path / "x.en", tmp_path / "x.de")
