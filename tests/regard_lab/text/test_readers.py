"""Files as people have them: what is kept, what is dropped and counted, what is refused by name and line."""

import csv
import gzip
import io
import json

import pytest

from regard.errors import DataError, NotFoundError
from regard_lab.text import Pair, read_lines, read_pairs
from regard_lab.text import lines as reading
from regard_lab.text.documents import read_documents, read_labelled
from regard_lab.text.tables import HALF_QUOTED

HELLO = Pair("hello", "hallo")


@pytest.fixture
def write(tmp_path):
    """Write bytes (or text) under a name, and give the path."""

    def put(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    return put


# --- what is kept, and what is dropped, counted and named by its first line

HELLO_LAST = [HELLO, Pair("last", "letzte")]
FIRST = '{"target": "hallo", "source": "hello", "id": 7}\n'
LAST = '\n{"source": "last", "target": "letzte"}\n'


def one_bad(reason, *lines):
    """A table for each of these lines, between two good ones."""
    return [
        (
            {
                "x.tsv": b"hello\thallo\n"
                + (line if isinstance(line, bytes) else line.encode())
                + b"\nlast\tletzte\n"
            },
            HELLO_LAST,
            {reason: (1, "x.tsv", 2)},
        )
        for line in lines
    ]


def bad_json(reason, *lines):
    return [
        ({"x.jsonl": f"{FIRST}{line}{LAST}"}, HELLO_LAST, {reason: (1, "x.jsonl", 2)})
        for line in lines
    ]


BIRD = [Pair("A bird sang.", "Ein Vogel sang."), Pair("Yes, it did", 'Ja, "wirklich"')]
CSV = 'A bird sang.,Ein Vogel sang.\n"Yes, it did","Ja, ""wirklich"""\n'
READ = [
    ({"x.tsv": b"\xef\xbb\xbfhello\thallo\n"}, [HELLO], {}),  # byte order mark
    ({"x.tsv": b"hello\thallo\r\n"}, [HELLO], {}),  # Windows
    ({"x.tsv": b"hello\thallo"}, [HELLO], {}),  # no line end at the end
    ({"x.tsv": "a\u2028b\tc\u0085d\n"}, [Pair("a b", "c d")], {}),  # not line ends here
    # form feed, vertical tab, lone CR
    ({"x.tsv": "a\x0cb\tc\x0bd\re\n"}, [Pair("a b", "c d e")], {}),
    ({"x.csv": "source,target\na\rb,c\n"}, [Pair("a b", "c")], {}),
    # special spaces of targets remain
    ({"x.tsv": "  a \u00a0  b \t c\u3000d\n"}, [Pair("a b", "c\u3000d")], {}),
    ({"x.tsv": "cafe\u0301\tKaffee\n"}, [Pair("caf\u00e9", "Kaffee")], {}),  # NFC
    # joiners, right to left
    ({"x.tsv": "I 😀 👩\u200d🚀\tשלום ❤️\n"}, [Pair("I 😀 👩\u200d🚀", "שלום ❤️")], {}),
    # typography is the tokeniser's business
    ({"x.tsv": "don’t\tso “nicht”\n"}, [Pair("don’t", "so “nicht”")], {}),
    (
        {"x.JSONL": '{"source": "two\\nlines\u2028here", "target": "zwei"}'},
        [Pair("two lines here", "zwei")],
        {},
    ),
    # A header names the columns in any order.
    ({"a.csv": f"source,target\n{CSV}"}, BIRD, {}),
    (
        {"a.csv": f"\ufeffSource , Target\r\n{CSV}".replace("\n", "\r\n").replace("\r\r", "\r")},
        BIRD,
        {},
    ),
    ({"a.CSV": f"src,translation\n{CSV}"}, BIRD, {}),
    ({"a.csv": f"source;target\n{CSV}".replace(",E", ";E").replace('","', '";"')}, BIRD, {}),
    (
        {
            "a.csv": 'source\ttarget\nA bird sang.\tEin Vogel sang.\nYes, it did\t"Ja, ""wirklich"""\n'
        },
        BIRD,
        {},
    ),
    (
        {"a.tsv": 'source\ttarget\nA bird sang.\tEin Vogel sang.\nYes, it did\tJa, "wirklich"\n'},
        BIRD,
        {},
    ),
    ({"a.tsv": 'A bird sang.\tEin Vogel sang.\nYes, it did\tJa, "wirklich"\n'}, BIRD, {}),
    (
        {
            "a.tsv": 'target\tid\tsource\nEin Vogel sang.\t1\tA bird sang.\nJa, "wirklich"\t2\tYes, it did\n'
        },
        BIRD,
        {},
    ),
    *one_bad("empty line", "", " \t "),
    *one_bad("not exactly two columns", "no tab", "one\ttwo\tthree"),
    *one_bad("empty side", "source\t", "\ttarget", "\u00a0\ttarget"),
    *one_bad("too long", "word " * 251 + "\tx", "x\t" + "word " * 251, "x" * 10_001 + "\tx"),
    *one_bad("duplicate", "hello\thallo", "hello \t hallo\r"),
    *one_bad("not valid UTF-8", b"caf\xe9\tKaffee", b"\xed\xa0\x80\tsurrogate"),
    *bad_json("broken JSON", '{"source": "a", "target": ', "source: a", "[" * 100_000),
    *bad_json(
        "without source and target strings",
        '{"source":"a","target":3}',
        '{"source":"a"}',
        '["a","b"]',
        '"ab"',
    ),
    *bad_json("with a NUL character", '{"source": "a\\u0000b", "target": "c"}'),
    *bad_json("not valid Unicode", '{"source": "a\\ud800", "target": "c"}'),
    *bad_json("empty side", '{"source": " ", "target": "c"}'),
    *bad_json("empty line", ""),
    # Parallel files: a fault in the second file names that file.
    (
        {"x.en": "hello\n\n\nbad\nhello\n", "x.de": "hallo\r\n\nallein\n\nhallo"},
        [HELLO],
        {"empty line": (1, "x.en", 2), "empty side": (2, "x.en", 3), "duplicate": (1, "x.en", 5)},
    ),
    (
        {"x.en": b"a\nb\nc\n", "x.de": b"A\n\xff\n \n"},
        [Pair("a", "A")],
        {"not valid UTF-8": (1, "x.de", 2), "empty side": (1, "x.de", 3)},
    ),
    # Files that were joined without a line end give no joined pair.
    (
        dict.fromkeys(("x.en", "x.de"), "\ufefffirst\nlast\ufeffnew first\n\ufeffmore\n"),
        [Pair("first", "first"), Pair("more", "more")],
        {"with a byte order mark inside": (1, "x.en", 2)},
    ),
    (
        {"x.tsv": "a\tb\ufeffc\td\ne\tf\n"},
        [Pair("e", "f")],
        {"not exactly two columns": (1, "x.tsv", 1)},
    ),
    # A NUL past the start, and a file whose name reads like named columns.
    (
        {"a.tsv:x,y.tsv": "".join(f"source {i}\ttarget {i}\n" for i in range(1000)) + "a\0b\tc\n"},
        [Pair(f"source {i}", f"target {i}") for i in range(1000)],
        {"with a NUL character": (1, "a.tsv:x,y.tsv", 1001)},
    ),
    (
        {"a.csv": b'source,target\na,b\nonly one\n\n"two\nlines",c\n\xff,d\na,b\n,e\n'},
        [Pair("a", "b"), Pair("two lines", "c")],
        {
            "not as many columns as the header": (1, "a.csv", 3),
            "empty line": (1, "a.csv", 4),
            "not valid UTF-8": (1, "a.csv", 7),
            "duplicate": (1, "a.csv", 8),
            "empty side": (1, "a.csv", 9),
        },
    ),
]


@pytest.mark.parametrize(("files", "pairs", "dropped"), READ)
def test_pairs_are_kept_and_bad_lines_dropped_counted_and_named(write, files, pairs, dropped):
    paths = {name: write(name, content) for name, content in files.items()}
    read = read_pairs(*paths.values())
    assert read.pairs == pairs
    assert read.dropped == {reason: count for reason, (count, *_) in dropped.items()}
    assert read.first_lines == {
        reason: (str(paths[name]), line) for reason, (_, name, line) in dropped.items()
    }
    assert (read.kept, read.lines) == (len(pairs), len(pairs) + sum(read.dropped.values()))
    for reason, (count, name, line) in dropped.items():
        assert f"{count} {reason}, first at {paths[name]} line {line}" in read.report()


def test_the_longest_side_has_exactly_max_words_and_another_target_is_no_duplicate(write):
    path = write("x.tsv", "a b c\tx\na b c d\ty\na b c\ty\n")
    assert read_pairs(path, max_words=3).pairs == [Pair("a b c", "x"), Pair("a b c", "y")]


# --- what is refused, by name and line, with a way out

ALONE = r"carriage return alone; convert it with `tr '\\r' '\\n' < .*lines\."
COUNTS = r"x\.en has {} but \S*x\.de has {}"
REFUSED = [
    ({"empty.tsv": b""}, "", r"empty\.tsv is empty"),
    ({"empty.jsonl": b"\xef\xbb\xbf"}, "", r"empty\.jsonl: none of 1 line"),
    (
        {"lines.tsv": b"\n\n"},
        "",
        r"none of 2 lines gives a pair \(2 empty line, first at \S*lines\.tsv line 1",
    ),
    (
        {"plain.tsv": b"a b\nc d\n"},
        "",
        r"none of 2 lines .*not exactly two columns, first at \S*plain\.tsv line 1",
    ),
    ({"array.jsonl": b'[{"source": "a", "target": "b"}]'}, "", r"array\.jsonl line 1"),
    (
        {"image.tsv": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"},
        "",
        r"image\.tsv, line 3 contains a NUL byte",
    ),
    ({"wide.tsv": "a\tb\n".encode("utf-16")}, "", r"wide\.tsv, line 1 starts as UTF-16"),
    (
        {"latin.tsv": "né\tja\nné\tja\nok\tja\n".encode("latin-1")},
        "",
        r"latin\.tsv: 2 of 3 lines.*the first is line 1",
    ),
    ({"notes.xlsx": b"a,b\n"}, "", r"notes\.xlsx has an unknown suffix"),
    ({"alone.txt": b"a\n"}, "", r"two parallel plain files"),
    ({"x.en": "a\nb\nc\n", "x.de": "A\nB\n"}, "", COUNTS.format("3 lines", 2)),
    ({"x.en": "a\n", "x.de": "A\nB\n\n"}, "", COUNTS.format("1 line", 3)),
    ({"x.en": "a\nb\nc\n", "x.de": "A\n\nB\nC\n"}, "", COUNTS.format("3 lines", 4)),
    ({"mac.tsv": b"a\tb\rc\td\r"}, "", rf"mac\.tsv line 1 .*{ALONE}"),
    ({"x.csv": b"source,target\ra,b\rc,d"}, "", ALONE),
    ({"x.en": b"a b\rc d\r", "x.de": b"a b\rc d\r"}, "", ALONE),
    ({"x.jsonl": b'{"source": "a"}\r{"source": "b"}'}, "", ALONE),
    # Columns that are not certain
    (
        {"a.csv": "en,de\nHello,Hallo\n"},
        "",
        "begins with 'en', 'de'; a .csv begins with a header. Put the line",
    ),
    ({"a.csv": "en,de\nHello,Hallo\n"}, "", r"as in \S*a\.csv:en,de$"),
    ({"a.csv": ""}, "", "begins with an empty line"),
    ({"a.tsv": "en\tde\nHello\tHallo\n"}, "", "the first line 'en', 'de' may be a header or a row"),
    ({"a.csv": "source,target,source\na,b,c\n"}, "", "names a column twice"),
    ({"a.tsv": "a\tb\n"}, ":english,german", "its first line is 'a', 'b'"),
    ({"a.csv": 'source,target\na,b\n"open,c\nd,e\n'}, "", "line 3: the quotes do not close"),
    ({"x.tsv": '"a\nb"\t"c\nd"\n'}, "", r"none of 3 lines gives a pair .* rename it to x\.csv"),
    (
        {"y.tsv": '"English"\t"German"\n"A bird."\t"Ein Vogel."\n'},
        ":english,german",
        r"is quoted, and quotes in a \.tsv are read as letters; rename it to y\.csv",
    ),
    ({"q.tsv.gz": gzip.compress(b'"source"\t"target"\na\tb\n')}, "", r"rename it to q\.csv\.gz"),
    (
        {"l.tsv.gz": gzip.compress("né\tja\nné\tja\n".encode("latin-1"))},
        "",
        r"l\.tsv.*`gunzip --keep \S*l\.tsv\.gz && iconv -f latin1 -t utf-8 \S*l\.tsv >",
    ),
    (
        {"named.tsv": gzip.compress(b"a\tb\n")},
        "",
        r"named\.tsv is a gzip file; let its name end in \.gz",
    ),
]


@pytest.mark.parametrize(("files", "asked", "message"), REFUSED)
def test_what_is_not_pairs_is_refused_by_name_and_line_with_a_way_out(write, files, asked, message):
    paths = [write(name, content) for name, content in files.items()]
    with pytest.raises(DataError, match=message):
        read_pairs(*(f"{path}{asked}" for path in paths))


def test_one_damaged_line_never_refuses_a_file_and_a_fifth_does_not_either(write):
    assert read_pairs(write("one.tsv", b"a\tb\n\xff\tc\n")).dropped == {"not valid UTF-8": 1}
    lines = [b"%d\tx\n" % i for i in range(8)] + [b"\xff\n"] * 2
    assert read_pairs(write("fifth.tsv", b"".join(lines))).kept == 8
    with pytest.raises(DataError, match="3 of 11 lines"):
        read_pairs(write("more.tsv", b"".join([*lines, b"\xff\n"])))


# --- files that gzip packed


@pytest.mark.parametrize(
    ("name", "columns", "content"),
    [
        ("a.tsv", "", "hello\thallo\n"),
        ("a.csv", ":en,de", "de,en\nhallo,hello\n"),
        ("a.jsonl", "", '{"source": "hello", "target": "hallo"}\n'),
        ("a.jsonl", ":1,2", '{"1": "hello", "2": "hallo"}\n'),
        ("deu.txt", ":2,1", "hallo\thello\n"),
    ],
)
def test_a_packed_file_is_read_as_the_plain_one(write, name, columns, content):
    path = write(f"{name}.GZ", gzip.compress(content.encode()))
    assert read_pairs(f"{path}{columns}").pairs == [HELLO]
    assert list(read_lines(path)) == content.splitlines()
    assert read_documents(write("t.jsonl.gz", gzip.compress(b'{"text": "a"}\n'))).texts == ("a",)
    sides = [
        write(f"few.{side}.gz", gzip.compress(f"{side}\n".encode())) for side in ("hello", "hallo")
    ]
    assert read_pairs(*sides).pairs == [HELLO]
    labelled = write("l.tsv.gz", gzip.compress(b"good\tA bird sang.\nbad\tIt rained.\n"))
    assert read_labelled(labelled).labels == ("bad", "good")


def test_a_packed_file_that_is_damaged_or_too_large_names_the_way_out(write, monkeypatch):
    whole = gzip.compress(b"".join(b"%d\tx\n" % i for i in range(9_000)))
    middle = len(whole) // 2
    for content in (
        whole[:-9],
        whole[:middle],
        whole[:middle] + bytes(9) + whole[middle + 9 :],
        b"hello\thallo\n",
    ):
        with pytest.raises(
            DataError, match=r"a\.tsv\.gz is damaged, or no gzip file \(.+\); copy it again"
        ):
            read_pairs(write("a.tsv.gz", content))
    path = write("a.tsv.gz", whole)
    unpacked = len(gzip.decompress(whole))
    monkeypatch.setattr(reading, "MOST_UNPACKED_BYTES", unpacked)
    assert read_pairs(path).kept == 9_000
    monkeypatch.setattr(reading, "MOST_UNPACKED_BYTES", unpacked - 1)
    with pytest.raises(DataError, match=f"more than {unpacked - 1:,} bytes.*gunzip --keep {path}$"):
        read_pairs(path)
    with pytest.raises(DataError, match="is a zip archive; unpack it by unzip"):
        read_documents(write("deu-eng.zip", b"PK\3\4" + bytes(50)))
    assert next(iter(read_lines(write("empty.gz", b""))), None) is None


def test_a_file_that_cannot_be_opened_and_a_folder_are_refused(tmp_path):
    for name in ("missing.tsv", "no\0name.tsv", "x" * 300 + ".tsv"):
        with pytest.raises(DataError, match=r"does not exist|cannot be opened"):
            read_pairs(tmp_path / name)
    for name in ("folder.tsv", "folder"):
        (tmp_path / name).mkdir()
        with pytest.raises(DataError, match="is a folder"):
            read_pairs(tmp_path / name)


def test_the_report_is_one_sentence_with_the_first_line_of_each_reason(write):
    path = write("x.tsv", "a\tb\nno\n\nno\n")
    assert read_pairs(path).report() == (
        f"{path}: kept 1 of 4 lines; dropped 3 (2 not exactly two columns, first at {path} line 2; "
        f"1 empty line, first at {path} line 3)"
    )
    assert read_pairs(write("y.tsv", "a\tb\n")).report().endswith("y.tsv: kept 1 of 1 line")


# --- plain sentences


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_i_comes_from_line_i(write, end):
    lines = ["first", "", "  third ", "four\u2028still four\x0cand\x85 four", "", "last"]
    content = end.join(lines)
    assert list(read_lines(write("x.txt", content))) == lines
    assert list(read_lines(io.BytesIO(content.encode()))) == lines
    assert list(read_lines(io.StringIO(content, newline="\n"))) == lines
    assert (
        list(read_lines(io.TextIOWrapper(io.BytesIO(content.encode()), encoding="ascii"))) == lines
    )


def test_lines_are_given_out_as_they_arrive():
    assert list(read_lines(io.BytesIO(b""))) == []
    assert list(read_lines(io.BytesIO(b"\n"))) == [""]

    def typed():
        yield b"first\n"
        raise AssertionError("the second line was asked for before the first was given out")

    assert next(read_lines(typed())) == "first"


@pytest.mark.parametrize("bad", [b"caf\xe9", b"a\0b"])
def test_a_line_that_is_not_text_is_refused_by_name_and_number(write, bad):
    path = write("x.txt", b"good\n" + bad + b"\ngood\n")
    with pytest.raises(DataError, match=r"x\.txt, line 2 (is not valid UTF-8|contains a NUL)"):
        list(read_lines(path))
    with pytest.raises(DataError, match="the input, line 2"):
        list(read_lines(io.BytesIO(path.read_bytes())))
    with pytest.raises(DataError, match="does not exist"):
        list(read_lines(path.with_name("missing.txt")))


# Tables with a header: columns are read by their names, and a column that nobody named is never guessed


@pytest.mark.parametrize(("name", "mark"), [("a.csv", ","), ("a.tsv", "\t")])
def test_a_path_names_the_columns(write, name, mark):
    path = write(name, "n,German,English\n1,Ein Vogel sang.,A bird sang.".replace(",", mark))
    assert read_pairs(f"{path}:english,german").pairs == BIRD[:1]
    assert read_pairs(f"{path}:german,english").pairs == [Pair("Ein Vogel sang.", "A bird sang.")]


@pytest.mark.parametrize("nested", [False, True])
def test_a_path_names_the_keys_of_json_objects(write, nested):
    pair = {"German": "Ein Vogel sang.", "English": "A bird sang."}
    lines = [
        {"id": 1, **({"translation": pair} if nested else pair)},
        {"English": 7, "German": "x"},
    ]
    path = write("a.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines))
    read = read_pairs(f"{path}:english,german")
    assert (read.pairs, read.dropped) == (BIRD[:1], {"without strings 'english' and 'german'": 1})
    assert read_pairs(f"{path}:german,english").pairs == [Pair("Ein Vogel sang.", "A bird sang.")]
    with pytest.raises(
        NotFoundError, match="none of 2 lines gives a pair: the strings of its first object are"
    ) as no:
        read_pairs(path)
    assert str(no.value).endswith(
        f"'German', 'English'; name the keys after the file, as in {path}:German,English"
    )
    with pytest.raises(
        NotFoundError, match=r"name the keys after the file, as in .*a\.jsonl:English,German"
    ):
        read_pairs(f"{path}:english,germn")
    assert read_pairs(write("b.jsonl", '{"src": "a", "tgt": "b"}\n')).pairs == [Pair("a", "b")]


@pytest.mark.parametrize(
    ("name", "content", "asked"),
    [
        ("a.csv", "text,label\nA bird sang.,good\nIt rained.,bad\n", ""),
        ("a.csv", "id,stars,review\n1,good,A bird sang.\n2,bad,It rained.\n", ":stars,review"),
        ("a.tsv", "label\ttext\ngood\tA bird sang.\nbad\tIt rained.\n", ""),
    ],
)
def test_labels_are_read_by_their_names_too(write, name, content, asked):
    read = read_labelled(f"{write(name, content)}{asked}")
    assert read.labels == ("bad", "good")
    assert read.pairs[0] == Pair("A bird sang.", "good")


# No pair is made from halves of two, and nothing is unquoted silently

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
        csv.writer(file, delimiter="\t", quoting=quoting).writerows(
            [header, *ROWS] if header else ROWS
        )
    return path


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize("header", [None, ("source", "target")])
def test_no_pair_is_made_from_halves_of_a_quoted_row(tmp_path, quoting, header):
    path = write_table(tmp_path / "x.tsv", quoting, header)
    if header and quoting == csv.QUOTE_ALL:
        with pytest.raises(
            DataError,
            match=r"the header .* is quoted, .* rename it to x\.csv, whose quotes are read$",
        ):
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
    assert ("with the header source TAB target as its first line" in read.report()) == (
        header is None
    )


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_the_way_out_of_a_quoted_tsv_reads_every_row(tmp_path, quoting):
    read = read_pairs(write_table(tmp_path / "x.csv", quoting, ("source", "target")))
    assert (read.pairs, read.dropped, read.quoted) == (TIDY, {}, None)


def test_stray_quotes_of_an_unquoted_table_are_letters(write):
    rows = [
        ('He said "no"', 'Er sagte "nein"'),
        ('"No," he said.', '"Nein", sagte er.'),
        ('"Yes."', '"Ja."'),
        ('the "a" and the "b"', 'das "a" und das "b"'),
        ("plain", "einfach"),
        ("more", "mehr"),
    ]
    read = read_pairs(
        write("tatoeba.tsv", "".join(f"{source}\t{target}\n" for source, target in rows))
    )
    assert read.pairs == [Pair(*row) for row in rows]
    assert (read.dropped, read.quoted) == ({}, None)


def test_a_row_with_an_unpaired_quote_at_an_edge_is_dropped_and_counted(write):
    path = write("x.tsv", 'good\tgut\nbreak"\t"Zeile 0\nfine\tgut\nlast"\tletzte\n')
    read = read_pairs(path)
    assert read.pairs == [Pair("good", "gut"), Pair("fine", "gut")]
    assert read.dropped == {HALF_QUOTED: 2}
    assert read.first_lines == {HALF_QUOTED: (str(path), 2)}
    assert "2 of 4 rows look quoted" in read.report()


def test_halves_of_quoted_rows_are_no_labelled_texts(write):
    labelled = read_labelled(write("z.tsv", 'good\tA bird.\nbad\t"It\nrained"\nbad\tIt snowed.\n'))
    assert [pair.source for pair in labelled.pairs] == ["A bird.", "It snowed."]


def test_a_table_without_header_is_read_by_the_numbers_of_its_columns(write):
    text = "Go.\tGeh.\tCC-BY 2.0 #1\nHi.\tHallo!\tCC-BY 2.0 #2\nbroken\tline\n"
    path = write("deu.txt", text)
    read = read_pairs(f"{path}:1,2")
    assert read.pairs == [Pair("Go.", "Geh."), Pair("Hi.", "Hallo!")]
    assert read_pairs(f"{path}:2,1").pairs == [Pair("Geh.", "Go."), Pair("Hallo!", "Hi.")]
    assert "columns 1 and 2 of 3 are read, from the first line on" in read.report()
    assert "1 not as many columns" in read.report()
    commas = write("a.csv", "source;target\nx;y\n")
    assert read_pairs(f"{commas}:2,1").pairs[0] == Pair("target", "source")
    for numbers in ("1,4", "2,2", "9,1"):
        with pytest.raises(
            NotFoundError, match=r"has 3 columns in its first line, 'Go\.', 'Geh\.'"
        ):
            read_pairs(f"{path}:{numbers}")
    with pytest.raises(NotFoundError, match=r"by their numbers, as in .*deu\.txt:1,2$"):
        read_pairs(path)
