"""Commands that compute nothing start about as fast as torch does, and import nothing that they do not use."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest

HEAVY = (
    "sympy", "mpmath", "torch.fx", "torch._dynamo", "torch._inductor", "torch._refs", "matplotlib", "rich",
    "tokenizers", "sacrebleu", "accelerate", "transformers", "regard_lab.models", "regard_lab.decoding",
    "regard_lab.training", "regard_lab.seeing",
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
# Each command in a fork of a process that has imported torch alone. The last line of each is its record.
RUN = """
import os, time, torch
with_torch = time.process_time()
import json, sys
before = set(sys.modules)
for words in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        began = time.process_time()
        sys.argv = ["regard", *words]
        try:
            from regard_lab.cli import main
            main()
        except SystemExit:
            seconds = time.process_time() - began
            record = {"seconds": seconds, "torch": with_torch, "modules": sorted(set(sys.modules) - before)}
            print("\\nrecord:", json.dumps(record), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@cache
def started(attempt: int) -> dict[str, dict]:
    """By command: the CPU seconds after torch was imported, those until then, and the modules imported since."""
    command = [sys.executable, "-c", RUN, json.dumps(list(LIGHT.values()))]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line for line in answer.stdout.splitlines() if line.startswith("record:")]
    return {name: json.loads(line.removeprefix("record:")) for name, line in zip(LIGHT, lines, strict=True)}


@pytest.mark.parametrize("name", LIGHT)
def test_no_command_imports_what_it_does_not_use(name):
    modules = started(0)[name]["modules"]
    assert "regard_lab.cli.app" in modules
    assert not set(HEAVY) & set(modules)


@pytest.mark.parametrize("name", LIGHT)
def test_a_command_that_computes_nothing_takes_less_than_one_and_a_half_times_import_torch(name):
    """In the process that imported torch, so that both meet the same load; the least of up to four tries."""
    attempts = []
    for attempt in range(4):
        attempts.append(started(attempt)[name])
        seconds, torch = (min(one[part] for one in attempts) for part in ("seconds", "torch"))
        if seconds < 0.5 * torch:
            return
    assert seconds + torch < 1.5 * torch
