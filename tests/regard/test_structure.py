"""How regard is built: DESIGN.md's drawing, the wall before regard_lab, and what `import regard` needs."""

import ast
import os
import re
import subprocess
import sys

from structure import ROOT, circles, imports_of, modules, nodes, wrong_imports
from structure_laws import StructureLaws

EXTRAS = (
    "accelerate",
    "matplotlib",
    "rich",
    "sacrebleu",
    "safetensors",
    "tokenizers",
    "transformers",
    "typer",
)
WALL = """
import sys

class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BEHIND:
            raise ModuleNotFoundError(f"No module named {name!r}: it is behind the wall", name=name)

sys.meta_path.insert(0, Wall())
"""


class TestLibrary(StructureLaws):
    package = "regard"


def test_planted_faults_are_seen():
    assert wrong_imports("regard.patterns.base", {"regard.functional"})
    assert wrong_imports("regard.backends.fused", {"regard.backends.reference"})
    assert wrong_imports("regard.backends.flash", {"regard.backends.streamed"})
    assert wrong_imports("regard.functional", {"regard.testing.oracle"})
    assert wrong_imports("regard.mechanisms", {"regard.bias"})
    assert wrong_imports("regard.distributed.api", {"regard_lab.models"})
    assert not wrong_imports("regard.backends", {"regard.backends.fused"})
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def test_every_place_that_design_names_exists():
    design = (ROOT / "DESIGN.md").read_text("utf-8")
    named = set(re.findall(r"`((?:regard|regard_lab|tests|docs|benchmarks)/[\w/.]*)`", design))
    assert len(named) > 20
    assert not {name for name in named if not (ROOT / name).exists()}


def test_design_names_every_file_that_asks_whether_a_number_is_nan_or_finite():
    design = (ROOT / "DESIGN.md").read_text("utf-8")
    section = design.partition("## Where a NaN is handled")[2].partition("\n## ")[0]
    asks = re.compile(
        r"isnan|isfinite|isinf\b|nan_to_num|__builtin_nan|== -(math|torch)\.inf\b.*, 0\)"
    )
    asking = []
    for path in sorted((ROOT / "regard").rglob("*")):
        is_source = path.suffix in (".py", ".h", ".cpp") and "testing" not in path.parts
        if is_source and asks.search(path.read_text("utf-8")):
            asking.append(path.name)
    assert len(asking) > 10
    assert not [name for name in asking if f"{name}`" not in section]


def test_the_oracle_shares_no_code_with_what_it_checks():
    assert not imports_of(ROOT / "regard" / "testing" / "oracle.py")


def test_one_file_owns_the_private_operations():
    files = modules("regard").items()
    owners = [name for name, path in files if "torch.ops.aten" in path.read_text("utf-8")]
    assert owners == ["regard.backends.flash"]


def test_patterns_and_mechanisms_import_at_the_top_of_their_files():
    """Imports inside functions hide circles, and cost time at every call."""
    for name, path in modules("regard").items():
        if not name.startswith(("regard.patterns", "regard.mechanisms")):
            continue
        for block in nodes(path, ast.FunctionDef, ast.If):
            for node in ast.walk(block):
                assert not isinstance(node, ast.Import | ast.ImportFrom), f"{name}:{node.lineno}"


def test_only_one_module_asks_pytorch_whether_it_exports():
    """PyTorch 2.11 says so in every compiled graph."""
    sources = {**modules("regard"), **modules("regard_lab")}
    asking = {name for name, path in sources.items() if "is_exporting" in path.read_text("utf-8")}
    assert asking == {"regard.exporting"}


def test_what_needs_pytorch_alone_does_not_import_numpy():
    optional = ("regard.testing", "regard.integrations", "regard.distributed")
    for name, path in modules("regard").items():
        if name.startswith(optional):
            continue
        imported = {node.module or "" for node in nodes(path, ast.ImportFrom)}
        for node in nodes(path, ast.Import):
            imported |= {alias.name for alias in node.names}
        assert "numpy" not in {module.split(".")[0] for module in imported}, name


def alone(behind: tuple[str, ...], program: str) -> None:
    """Run a program where some modules cannot be imported."""
    code = f"BEHIND = {behind!r}\n{WALL}\n{program}\nprint('done')"
    # Forks of the program would wait for threads that they do not have.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.stdout.strip().endswith("done"), ended.stderr


def test_import_regard_needs_torch_alone_and_takes_no_gpu():
    program = """
import torch
import torch.utils.flop_counter  # imports triton itself, where PyTorch is built for GPUs
before = set(sys.modules)
import regard
third = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
assert not {name for name in third if name not in ("regard", "torch") and not name.startswith("_")}, third
assert not torch.cuda.is_initialized()
x = torch.randn(1, 2, 5, 8)
assert regard.attention(x, x, x, pattern="causal").shape == x.shape
"""
    alone(("regard_lab", *EXTRAS), program)


def test_attention_layers_caches_transformers_and_two_processes_run_without_the_lab():
    program = """
import importlib, multiprocessing, pkgutil, tempfile
import torch, regard as rg
import regard.integrations.transformers as attached
import transformers

for module in pkgutil.walk_packages(rg.__path__, "regard."):
    if not module.name.endswith(("__main__", "libregard_native")):
        importlib.import_module(module.name)
x, y = torch.randn(1, 2, 5, 8), torch.randn(1, 3, 16)
assert rg.attention(x, x, x, pattern="causal").shape == x.shape
layer = rg.MultiHeadAttention(dim=16, heads=2, pattern="causal")
assert layer(y, cache=layer.new_cache(batch=1)).shape == y.shape
sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 11}
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
ids = torch.tensor([[1, 2, 3]])
expected = model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0)
attached.attach(model)
assert torch.equal(model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0), expected)

WORKER = '''
import torch, regard as rg
import torch.distributed as dist
from regard.distributed import attention
from torch.distributed.device_mesh import init_device_mesh

def work(rank, place):
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    torch.manual_seed(0)
    x = torch.randn(1, 2, 6, 8)
    mine = x[:, :, 3 * rank : 3 * rank + 3]
    out = attention(mine, mine, mine, init_device_mesh("cpu", (2,)), pattern="causal")
    whole = rg.attention(x, x, x, pattern="causal")[:, :, 3 * rank : 3 * rank + 3]
    torch.testing.assert_close(out, whole)
    dist.destroy_process_group()
'''
exec(compile(WORKER, "worker", "exec"))
place, fork = tempfile.mktemp(), multiprocessing.get_context("fork")
children = [fork.Process(target=work, args=(rank, place)) for rank in (0, 1)]
for child in children:
    child.start()
for child in children:
    child.join(300)
assert [child.exitcode for child in children] == [0, 0]
"""
    alone(("regard_lab",), program)
