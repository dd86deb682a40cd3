"""What a room shows: every name in `__all__` exists, once, with a docstring, and nothing public is forgotten."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import regard

ROOT = Path(regard.__file__).parent
CORE = ("patterns", "mechanisms", "bias", "positions", "layers", "layers.caches", "testing")
ROOMS = sorted(
    ".".join(("regard", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in (*ROOT.rglob("__init__.py"), *ROOT.glob("[!_]*.py"))
    if "__all__" in path.read_text(encoding="utf-8")
)

# Public in their file because a neighbouring file needs them, and no part of what the room promises.
INSIDE = {
    "patterns": {
        "Band", "Many", "both", "either", "negate", "check_size", "draw", "new_serial", "grids_of_rows", "Reach",
        "Segments", "hull", "Machinery", "four_axes", "marked", "visible_in_band",
        "everything", "side_by_side", "Kind", "Run", "RowBlock", "row_block", "row_block_at", "in_row_blocks",
        "ascending", "shifted", "Tiles", "tiles", "empty_rows",
        "seen_keys", "Compound", "shallow", "Count", "counted", "turning_rows", "estimated", "Budget",
        "SpentError", "look_cost", "alike_residues",
        "Answers", "narrowed", "canonical", "from_band", "union", "common", "outside", "without", "covers", "meets",
        "size", "over_rows", "simplified", "leaves", "replaced", "off_lattices", "drawn_pairs", "Panel", "common_shape",
        "learned", "check_summary", "positions", "runs", "words", "kept_whole", "number_by_row", "on_rows",
        "whole_numbers", "spans", "start_of", "starts_of", "check_sizes", "PerDocument",
        "same_serial", "settled", "read_together", "written_apart", "PatternReader",
        "Registry", "Declared", "Reader", "text_name", "written", "word", "usage", "is_importable",
    },
    "mechanisms": {"directions", "Sizes", "joined", "takes", "Features", "Kernelised", "rows_at"},
    "testing": {"numbers"},
    "positions": {"frequencies", "as_rotary", "check_positions", "checked_base"},
    "bias": {"series"},
    "layers.caches": {
        "Held", "Positions", "Summed", "whole_number", "add", "check_numbers", "checked_dtype", "kept", "read",
        "read_kind", "check_rows", "checked_device", "Page", "Pool", "PageTable", "Owned",
    },
    "layers": {
        "RecordedLayer", "current_recording", "LayerMechanism", "settings_of", "weights_of", "hinting_at_pytorch",
        "check_inputs", "check_masks", "check_vectors", "joined", "allowed_by", "as_four_axes", "mask_of_four_axes",
        "start_of_causal",
    },
}  # fmt: skip


@pytest.mark.parametrize("room", ROOMS)
def test_every_exported_name_exists_once_and_is_documented(room):
    module = importlib.import_module(room)
    assert len(module.__all__) == len(set(module.__all__)), f"{room}.__all__ names something twice"
    for name in module.__all__:
        shown = getattr(module, name)
        if inspect.ismodule(shown) or inspect.isclass(shown) or inspect.isfunction(shown):
            assert (shown.__doc__ or "").strip(), f"{room}.{name} has no docstring"


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "regard"])
def test_a_room_opens_with_at_most_five_lines(room):
    lines = (importlib.import_module(room).__doc__ or "").strip().splitlines()
    assert 1 <= len(lines) <= 5, f"{room} opens with {len(lines)} lines"


def files_of(room: str) -> list[Path]:
    """The files of a package, or the one file of a module."""
    place = ROOT.joinpath(*room.split("."))
    module = place.with_suffix(".py")  # asked first: a package that became a module may have left an empty folder
    return [module] if module.is_file() else sorted(place.glob("*.py"))


@pytest.mark.parametrize("room", CORE)
def test_everything_public_is_exported_or_known_to_be_inside(room):
    defined = {name for path in files_of(room) for name in public_names(path)}
    shown = set(importlib.import_module(f"regard.{room}").__all__)
    inside = INSIDE.get(room, set())
    assert defined - shown == inside, "export it from the room, name it with an underscore, or list it in INSIDE"


def test_every_file_says_what_it_is():
    for path in ROOT.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{path.relative_to(ROOT)} does not"


def public_names(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")}
