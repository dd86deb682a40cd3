"""Commands that compute nothing start about as fast as torch does, and import nothing that they do not use."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

HEAVY = (
    "sympy", "mpmath", "torch.fx", "torch._dynamo", "torch._inductor", "torch._refs", "matplotlib", "rich",
    "tokenizers", "sacrebleu", "accelerate", "transformers", "regard.models", "regard.decoding", "regard.training",
    "regard.inspection",
)  # fmt: skip
LIGHT = {
    "show": ("show", "causal & (strided(4) | random_blocks(1, block=2, seed=0))"),
    "every kind of pattern": ("show", "fixed(4) | prefix(2) | global_tokens(0) | per_head(causal, full)"),
    "a stack": ("show", "causal_window(4)", "--layers", "3"),
    "the list of patterns": ("show", "--list"),
    "plan": ("plan", "--q-len", "4096", "--pattern", "causal & causal_window(512)"),
    "the list of lessons": ("lesson", "--list"),
    "a pattern that does not exist": ("show", "causl"),
    "a size that cannot be": ("plan", "--q-len", "10", "--heads", "8", "--kv-heads", "3"),
    "a lesson that does not exist": ("lesson", "causl"),
}  # fmt: skip
# Each command in a fork of a process that has imported torch alone.
RUN = """
import json, os, sys, torch
before = set(sys.modules)
for number, words in enumerate(json.loads(sys.argv[1])):
    child = os.fork()
    if child == 0:
        sys.argv = ["regard", *words]
        try:
            from regard.cli import main
            main()
        except SystemExit:
            print("\\nmodules:", *(set(sys.modules) - before), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
START = "import json, sys; sys.argv = ['regard', *json.loads(sys.argv[1])]; from regard.cli import main; main()"


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """The modules that each command imported."""
    command = [sys.executable, "-c", RUN, json.dumps(list(LIGHT.values()))]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line for line in answer.stdout.splitlines() if line.startswith("modules:")]
    return {name: set(line.split()[1:]) for name, line in zip(LIGHT, lines, strict=True)}


@pytest.mark.parametrize("name", LIGHT)
def test_no_command_imports_what_it_does_not_use(loaded, name):
    assert "regard.cli.app" in loaded[name]
    assert not set(HEAVY) & loaded[name]


def cpu_seconds(program: str, *arguments: str) -> float:
    """The CPU time of a program in a Python of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("name", ["show", "plan", "the list of lessons", "a pattern that does not exist"])
def test_a_command_that_computes_nothing_takes_less_than_one_and_a_half_times_import_torch(name):
    """Side by side, so that both meet the same load; the least of up to four is the least disturbed."""
    torch, command = [], []
    for _ in range(4):
        torch.append(cpu_seconds("import torch"))
        command.append(cpu_seconds(START, json.dumps(LIGHT[name])))
        if min(command) < 1.5 * min(torch):
            return
    assert min(command) < 1.5 * min(torch)
