"""`import regard` needs torch alone and touches no accelerator."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import regard

EXTRAS = ("accelerate", "matplotlib", "rich", "sacrebleu", "safetensors", "tokenizers", "transformers", "typer")

BARE = f"""
import sys

class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

import torch
sys.meta_path.insert(0, Wall())
for name in [name for name in sys.modules if name.split(".")[0] in {EXTRAS!r}]:
    del sys.modules[name]
before = set(sys.modules)
import regard
third = {{name.split(".")[0] for name in set(sys.modules) - before}} - set(sys.stdlib_module_names)
own = {{name for name in third if name not in ("regard", "torch") and not name.startswith("_")}}
assert not own, own
assert not torch.cuda.is_initialized()
x = torch.randn(1, 2, 5, 8)
assert regard.attention(x, x, x, pattern="causal").shape == x.shape
print("alone")
"""


def test_import_regard_needs_torch_alone_and_takes_no_gpu():
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, timeout=1200, check=False)
    assert done.stdout.strip() == "alone", done.stderr


def test_only_the_side_door_and_optional_floors_name_numpy():
    root = Path(regard.__file__).parent
    core = ("patterns", "mechanisms", "positions", "backends", "layers")
    for path in [*root.glob("*.py"), *(path for room in core for path in (root / room).rglob("*.py"))]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
        named |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not {name for name in named if name.split(".")[0] == "numpy"}, f"{path.name} imports numpy"
