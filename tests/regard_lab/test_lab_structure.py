"""How regard_lab is built."""

from structure import drawn, wrong_imports
from structure_laws import StructureLaws


class TestLab(StructureLaws):
    package = "regard_lab"


def test_planted_faults_are_seen():
    assert wrong_imports("regard_lab.decoding.search", {"regard_lab.seeing"})
    assert wrong_imports("regard_lab.text", {"regard_lab.training"})
    assert wrong_imports("regard_lab.seeing.maps", {"regard_lab.bench.running"})
    assert wrong_imports("regard_lab.seeing.maps", {"regard.testing.oracle"})
    assert wrong_imports("regard_lab.decoding.search", {"regard_lab.helpers"})
    assert not wrong_imports(
        "regard_lab.seeing.maps", {"regard.functional", "regard_lab.models.base"}
    )


def test_a_line_of_a_drawing_ends_where_its_description_begins():
    design = "```\n```\n```\n  seeing   bench   maps of decoding\n    |\n  text\n```"
    assert drawn("regard_lab", design) == [["text"], ["seeing", "bench"]]
