"""On Windows everything but training works: a process of Linux without what only POSIX has stands in for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import importlib, json, os, pkgutil, signal, sys, tempfile
from pathlib import Path

for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
import torch  # imports what it needs of the system itself

for name in (
    *("O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "RTLD_NOLOAD", "RTLD_GLOBAL", "fork", "register_at_fork"),
    *("geteuid", "getuid", "getpgid", "sched_getaffinity", "fchmod"),
):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGPIPE", "SIGHUP", "SIGUSR1"):
    if hasattr(signal, name):
        delattr(signal, name)

import regard as rg
import regard_lab

found = {}
room = Path(tempfile.mkdtemp())


def tell(name, function):
    try:
        found[name] = function()
    except BaseException as error:
        found[name] = f"{type(error).__name__}: {error}"


def imports():
    modules = []
    for package in (rg, regard_lab):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            names = module.name.split(".")
            others = {"lessons", "flex", "__main__", "libregard_native"}
            # The package transformers is imported lazily, and does not find what was taken away.
            if not others & set(names) and "transformers" not in module.name:
                importlib.import_module(module.name)
                modules.append(module.name)
    return len(modules)


def attends():
    q = torch.randn(1, 2, 37, 16, requires_grad=True)
    output = rg.attention(q, q, q, pattern="causal")
    torch.autograd.grad(output.sum(), q)
    return list(output.shape)


def keeps_a_cache():
    layer = rg.MultiHeadAttention(32, 2, pattern="causal")
    cache = layer.new_cache(batch=1)
    layer(torch.randn(1, 5, 32), cache=cache)
    cache.save(room / "cache.safetensors")
    return type(cache).load(room / "cache.safetensors").length


def command(*words):
    from regard_lab.cli.app import app

    try:
        app(list(words), standalone_mode=False)
    except SystemExit as leaving:
        return leaving.code or 0
    return 0


tell("imports", imports)
tell("attention", attends)
tell("cache", keeps_a_cache)
tell("show", lambda: command("show", "causal", "--length", "7"))
tell("lesson", lambda: command("lesson", "causal"))
# which nobody reads
(room / "pairs.tsv").write_bytes(b"no pair")
words = ("train", "translation", "--data", str(room / "pairs.tsv"), "--out", str(room / "run"))
tell("train", lambda: command(*words))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, object]:
    # The library of Linux would not be there.
    environment = {**os.environ, "REGARD_NATIVE": "off"}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_without_posix_all_modules_are_imported_and_calls_caches_and_pages_work(answers):
    assert isinstance(answers["imports"], int), answers["imports"]
    assert answers["imports"] > 250
    assert answers["attention"] == [1, 2, 37, 16]
    assert answers["cache"] == 5
    assert (answers["show"], answers["lesson"]) == (0, 0)


def test_without_posix_training_refuses_before_it_reads_with_a_sentence_that_names_the_way_out(
    answers,
):
    sentence = "training locks its folder with fcntl, which this system lacks"
    assert sentence in str(answers["train"])
    assert "WSL" in str(answers["train"])
