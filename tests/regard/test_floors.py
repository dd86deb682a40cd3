"""The rooms of DESIGN.md's drawing: imports go downward only, and rooms side by side do not know each other."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import regard
from regard.backends import BACKENDS as REGISTERED

ROOT = Path(regard.__file__).parent
DRAWING = (ROOT.parent / "DESIGN.md").read_text(encoding="utf-8").split("```")[1]

USED = "backends.native"  # tiled hands it the parts of a strided pattern
BACKENDS = tuple({".".join(type(one).__module__.split(".")[1:3]) for one in REGISTERED.values()} - {USED})
# Inside the room of backends, from the ground up: what several of them use, then the backends, which are strangers.
SHARED = (
    ("backends.second_order", "backends.schedule"), ("backends.flash", "backends.merging", "backends.dropout"),
    ("backends.scores",), ("backends.statistics", "backends.composed"), ("backends.sinks",), (USED,),
)  # fmt: skip
SIDE_DOOR = "testing"
OUTSIDE = ("__init__", "__main__", SIDE_DOOR)


@cache
def modules() -> dict[str, Path]:
    paths = (path.relative_to(ROOT) for path in sorted(ROOT.rglob("*.py")))
    return {".".join(path.with_suffix("").parts).removesuffix(".__init__") or "__init__": ROOT / path for path in paths}


def rooms() -> set[str]:
    """What stands directly in regard/, packages and modules, beside what tests alone import."""
    return {name.split(".")[0] for name in modules()} - set(OUTSIDE)


def drawn(drawing: str = DRAWING) -> list[list[str]]:
    """The rooms on each line of the drawing, from the ground up; a line's names end where its description begins."""
    lines = []
    for line in drawing.splitlines():
        names = []
        for word in line.split():
            if word not in rooms():
                break
            names.append(word)
        lines += [names] if names else []
    return lines[::-1]


def floors() -> dict[str, int]:
    """The floor of each room, and of the parts of the rooms that have floors inside."""
    order: list[list[str]] = []
    for names in drawn():
        if names == ["backends"]:
            order += [*map(list, SHARED), list(BACKENDS), names]
        else:
            order += [names]
    return {name: number for number, names in enumerate(order) for name in names}


FLOORS = floors()
STRANGERS = [set(names) for names in drawn()] + [set(BACKENDS)]


def imports_of(path: Path) -> set[str]:
    """Modules of regard that a file imports, inside functions and for types too."""
    known = {f"regard.{name}" for name in modules()} | {"regard"}
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name} imports relatively; say regard.…"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {name if name in known else str(node.module) for name in names}
    return {name.removeprefix("regard.") for name in imported if name in known}


def room_of(module: str) -> str:
    """The name in FLOORS under which a module stands; the longest name counts."""
    fitting = [room for room in FLOORS if module == room or module.startswith(room + ".")]
    if not fitting:
        raise LookupError(f"regard.{module} stands in no room of DESIGN.md's drawing")
    return max(fitting, key=len)


def offences(module: str, imported: set[str]) -> list[str]:
    room = room_of(module)
    faults = []
    for other in sorted(imported - {"regard", "__init__"}):
        if other.split(".")[0] == SIDE_DOOR:
            faults.append(f"{module} imports {other}, which is for tests")
            continue
        other_room = room_of(other)
        if FLOORS[other_room] > FLOORS[room]:
            faults.append(f"{module} imports {other} from a room above")
        if room != other_room and any({room, other_room} <= strangers for strangers in STRANGERS):
            faults.append(f"{module} imports {other} from a room beside its own")
    return faults


def test_imports_go_downward_only():
    faults = []
    for module, path in modules().items():
        if module.split(".")[0] not in OUTSIDE:
            faults += offences(module, imports_of(path))
    assert not faults, "\n".join(faults)


def test_the_drawing_shows_every_room_once():
    shown = [room for names in drawn() for room in names]
    assert sorted(shown) == sorted(rooms())


def test_the_house_stays_small_enough_to_hold_in_the_head():
    """Few modules at the root, few rooms, few files, and none that needs scrolling for long."""
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    sizes = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()}
    assert len(rooms() - packages) <= 7
    assert len(packages) <= 18
    assert len(sizes) <= 185
    assert sum(sizes.values()) >= 140 * len(sizes)  # one idea whole in a file, not many small ones
    assert not {name: lines for name, lines in sizes.items() if lines > 400}


def test_inside_no_room_imports_from_the_root():
    """`import regard` or `from regard import attention` inside a room would make circles; the room is named instead."""
    exported = set(regard.__all__)
    for module, path in modules().items():
        if module.split(".")[0] in ("__init__", "__main__"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "regard":
                wanted = {alias.name for alias in node.names}
                assert not (wanted & exported) - rooms(), f"{module} imports {wanted & exported} from regard itself"


def test_the_oracle_shares_no_code_with_what_it_judges():
    assert not imports_of(ROOT / "testing" / "oracle.py")


def test_every_file_of_the_backends_is_a_listed_backend_or_shared_by_several():
    there = {f"backends.{path.stem}" for path in (ROOT / "backends").iterdir() if path.stem[0] != "_"}
    strange = there - set(BACKENDS) - {name for names in SHARED for name in names}
    assert not strange, f"{strange}: add it to BACKENDS in regard/backends/__init__.py, or to SHARED above"


def test_one_file_owns_the_private_operations():
    owners = [name for name, path in modules().items() if "torch.ops.aten" in path.read_text(encoding="utf-8")]
    assert owners == ["backends.flash"]


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("patterns.base", "functional"),
        ("backends.fused", "backends.reference"),
        ("backends.flash", "backends.scores.blocks"),
        ("functional", "testing.oracle"),
        ("backends.fused", "backends"),
    ],
)
def test_a_planted_offence_is_seen(module, imported):
    assert offences(module, {imported})


def test_a_module_without_a_room_is_seen():
    with pytest.raises(LookupError, match="stands in no room"):
        room_of("helpers")


def test_a_room_that_is_missing_in_the_drawing_is_seen():
    assert [["storage", "patterns"]] == drawn("     storage   patterns       sealed files")
