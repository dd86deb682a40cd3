"""The house has floors: imports go downward only, siblings are strangers, and one file owns the private operations."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import regard

ROOT = Path(regard.__file__).parent

KERNELS = (
    "kernels.reference", "kernels.fused", "kernels.tiled", "kernels.streamed", "kernels.decode", "kernels.flex",
    "kernels.linear", "kernels.linformer", "kernels.lsh",
)  # fmt: skip
# From the ground up. Modules on one line may import each other; a line in STRANGERS may not.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "arguments"),
    ("storage",),
    ("patterns", "bias", "positions", "mechanisms"),
    ("core.tensors", "core.result"),
    ("core.combination",),
    ("core.problem",),
    ("core.call", "core.backend"),
    ("core.hidden", "core.shaped"),
    ("core.plan",),
    ("core",),
    ("kernels.second_order", "kernels.schedule"),
    ("kernels.flash", "kernels.dropout"),
    ("kernels.scores",),
    ("kernels.statistics", "kernels.composed"),
    KERNELS,
    ("kernels",),
    ("functional.jagged", "functional.kept"),
    ("functional.compiled",),
    ("functional.transforms",),
    ("functional.api",),
    ("functional",),
    ("layers",),
    ("text", "models"),
    ("decoding", "training", "conversion", "inspection", "bench"),
    ("training.recipes",),
    ("conversion.uptraining",),
    ("comparison", "lessons", "walkthrough"),
    ("cli",),
)
STRANGERS = (
    {"decoding", "training", "conversion", "inspection", "bench"},
    {"comparison", "lessons", "walkthrough"},
    {"conversion", "lessons", "walkthrough"},
    set(KERNELS),
)
SIDE_DOOR = "testing"
JUDGES = ("bench",)  # rooms that enter by the side door, since they show answers right before they are timed
SHOP_WINDOW = "regard"  # regard/__init__.py re-exports every floor it wants


def modules() -> dict[str, Path]:
    paths = (path.relative_to(ROOT) for path in sorted(ROOT.rglob("*.py")))
    return {".".join(path.with_suffix("").parts).removesuffix(".__init__") or "__init__": ROOT / path for path in paths}


def imports_of(path: Path) -> set[str]:
    """Modules of regard that a file imports, inside functions too, but not for types alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    known = {f"regard.{name}" for name in modules()} | {"regard"}
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name} imports relatively; say regard.…"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else str(node.module) for name in names}
    return {name.removeprefix("regard.") for name in found if name in known}


def floor(module: str) -> tuple[int, str]:
    """The floor's number and the name in the table under which a module lives there; the longest name counts."""
    rooms = [(len(room), number, room) for number, floor in enumerate(FLOORS) for room in floor]
    fitting = [found for found in rooms if module == found[2] or module.startswith(found[2] + ".")]
    if not fitting:
        raise LookupError(f"regard.{module} stands on no floor; give it one in tests/test_floors.py")
    _, number, room = max(fitting)
    return number, room


def offences(module: str, imported: set[str]) -> list[str]:
    number, room = floor(module)
    found = []
    for other in sorted(imported - {"regard", "__init__"}):
        if other.split(".")[0] == SIDE_DOOR:
            if room in JUDGES:
                continue
            found.append(f"{module} imports {other}, which is for tests")
            continue
        other_number, other_room = floor(other)
        if other_number > number:
            found.append(f"{module} reaches up to {other}")
        if room != other_room and any({room, other_room} <= strangers for strangers in STRANGERS):
            found.append(f"{module} and {other} are strangers")
    return found


def test_nobody_imports_upstairs_or_a_stranger():
    found = []
    for module, path in modules().items():
        if module.split(".")[0] not in ("__init__", "__main__", SIDE_DOOR):
            found += offences(module, imports_of(path))
    assert not found, "\n".join(found)


def test_every_module_has_a_floor():
    for module in modules():
        if module.split(".")[0] not in ("__init__", "__main__", SIDE_DOOR):
            floor(module)


def test_nobody_inside_imports_the_shop_window():
    """`import regard` or `from regard import name` inside the house would make circles; a room is named instead."""
    shown = set(regard.__all__)
    rooms = {name.split(".")[0] for name in modules()}
    for module, path in modules().items():
        if module.split(".")[0] in ("__init__", "__main__", "cli"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "regard":
                wanted = {alias.name for alias in node.names}
                assert not (wanted & shown) - rooms, f"{module} takes {wanted & shown} from regard itself"


def test_the_oracle_shares_no_code_with_what_it_judges():
    assert not imports_of(ROOT / "testing" / "oracle.py")


def test_one_file_owns_the_private_operations():
    owners = [name for name, path in modules().items() if "torch.ops.aten" in path.read_text(encoding="utf-8")]
    assert owners == ["kernels.flash"]


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("patterns.base", "functional"),
        ("kernels.fused", "kernels.reference"),
        ("training.loop", "decoding"),
        ("text", "training"),
        ("functional", "testing.oracle"),
        ("kernels.fused", "kernels"),
        ("bench.running", "training"),
        ("cli.doctor", "testing.oracle"),
    ],
)
def test_a_planted_offence_is_seen(module, imported):
    assert offences(module, {imported})


def test_a_module_without_a_floor_is_seen():
    with pytest.raises(LookupError, match="stands on no floor"):
        floor("helpers")
