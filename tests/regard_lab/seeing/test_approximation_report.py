"""A report suggests the fastest within the tolerance, and reads as a table, as JSON and as a picture."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from regard.errors import ArgumentError
from regard_lab.seeing import Approximation
from regard_lab.seeing.quality import LeftOut, Row


def row(**changes):
    """A row as a comparison makes it."""
    given = Row("window 8", "window", "8", "the call", "tiled", 0.5, None, 1.0, 0.5, 0.1, 0.5, 100.0, 1.0)
    return replace(given, **changes)


def report(*rows, **changes):
    given = {"problem": "softmax of 1 x 1 heads", "backend": "fused", "seconds": 0.2, "bytes": 1e6, "tolerance": 0.1,
             "seeds": 5, "rows": rows, "left_out": ()}  # fmt: skip
    return Approximation(**given | changes)


def test_the_fastest_within_the_tolerance_is_suggested():
    rows = [
        row(name="a", error=0.3, time_ratio=0.1),
        row(name="b", error=0.09, time_ratio=0.4),
        row(name="c", error=0.01, time_ratio=0.6),
        row(name="d", error=math.nan, time_ratio=0.01),
    ]
    assert report(*rows).suggested("window").name == "b"
    assert "window: b, error 0.09 in 0.40 of the exact time" in str(report(*rows))
    assert report(*rows, tolerance=0.05).suggested("window").name == "c"
    assert report(*rows, tolerance=0.5).suggested("window").name == "a"


def test_that_none_is_within_the_tolerance_is_said_with_the_nearest():
    found = report(row(name="a", error=math.nan), row(name="b", error=0.3), row(name="c", error=0.2))
    assert found.suggested("window") is None
    assert found.suggestions == {"window": "window: none; the closest is c with 0.2"}


def test_random_parameters_in_the_place_of_learned_ones_are_not_suggested():
    drawn = row(name="linformer(37, 4) (untrained)", family="linformer", error=0.01)
    found = report(drawn)
    assert found.suggested("linformer") is None
    assert found.suggestions["linformer"] == (
        "linformer: none; its parameters have to be learned, and here they are random"
    )
    learned = row(name="linformer(37, 8)", family="linformer", error=0.2)
    found = report(drawn, learned)
    assert found.suggestions["linformer"] == "linformer: none; the closest is linformer(37, 8) with 0.2"


def test_what_is_slower_than_exact_attention_is_not_recommended():
    found = report(row(error=0.01, time_ratio=1.2))
    assert found.suggestions["window"].endswith("so exact attention is the better choice here")


def test_a_family_is_judged_against_the_call_where_it_is_compared_with_it():
    found = report(row(error=0.3), row(error=0.01, against="unit q, k; sigma 1"))
    assert found.suggested("window") is None
    assert report(row(error=0.01, against="keys that are the queries")).suggested("window") is not None


def test_json_holds_everything_and_no_number_that_json_lacks():
    found = report(row(), row(error=math.nan, spread=math.inf), left_out=(LeftOut("x", "x", "too long"),))
    record = json.loads(found.to_json(), parse_constant=pytest.fail)
    assert record["rows"][1]["error"] is record["rows"][1]["spread"] is None
    assert record["rows"][0]["mass"] == 0.5
    assert record["left_out"] == [{"name": "x", "family": "x", "reason": "too long"}]
    assert set(record) == {"problem", "backend", "seconds", "bytes", "tolerance", "seeds", "rows", "left_out",
                           "suggestions"}  # fmt: skip


def test_the_table_is_aligned_however_long_names_are():
    lines = str(report(row(), row(name="n" * 90, error=1e-12, spread=0.25, mass=None))).splitlines()
    header, *rows = lines[2:5]
    place = header.index("against")
    assert all(line[place - 1 : place + 8] == " the call" for line in rows)
    assert all(line[: header.index("error")].strip() for line in rows)
    assert max(map(len, lines)) <= 140


def test_the_picture_is_a_png_even_of_errors_that_a_logarithm_lacks(tmp_path):
    report(row(error=0.0), row(error=math.nan), row(spread=0.1, against="unit q, k; sigma 1")).plot(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[1:4] == b"PNG"
    with pytest.raises(ArgumentError, match="nothing to draw"):
        report().plot(tmp_path / "b.png")
