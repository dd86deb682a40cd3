"""The library needs nothing of the lab, and no file of it imports the lab."""

import subprocess
import sys
from pathlib import Path

import regard

PROGRAM = """
import importlib, pkgutil, sys
class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "regard_lab":
            raise ModuleNotFoundError(f"{name} is behind the wall", name=name)
sys.meta_path.insert(0, Wall())
import torch, regard as rg
from regard.layers.caches import GrowingCache
for one in pkgutil.walk_packages(rg.__path__, "regard."):
    if not one.name.endswith("libregard_native"):
        importlib.import_module(one.name)
x, y = torch.randn(1, 2, 5, 8), torch.randn(1, 3, 16)
assert rg.attention(x, x, x, pattern="causal").shape == x.shape
assert rg.MultiHeadAttention(dim=16, heads=2, pattern="causal")(y, cache=GrowingCache(1, 2, 8)).shape == y.shape
"""


def test_the_library_runs_without_the_lab():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr


def test_no_file_of_the_library_imports_the_lab():
    files = Path(regard.__file__).parent.rglob("*.py")
    assert not [one.name for one in files if "import regard_lab" in one.read_text("utf-8").replace("from", "import")]
