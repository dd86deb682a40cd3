"""The same calls on emulated Arm and here, and what differs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.backends.native.build import LIBRARY, BuildError, Target, find_compiler
from shipping import ROOT
from shipping.emulated import FOLDER, Emulated
from shipping.wheels import compiled
from tests.long.running import Found, joined
from tests.regard.native.test_native_compilers import DIGESTS

ARM = Target("linux", "aarch64")
TREE = FOLDER / "tree"
COPIED = ("regard", "tests", "shipping")


def missing() -> str | None:
    """Why nothing can be run on emulated Arm, in a sentence; None if it can."""
    if (reason := Emulated().missing) is not None:
        return reason
    try:
        find_compiler(ARM)
    except BuildError as error:
        return str(error)
    return None


def prepare() -> Path:
    """A copy of this tree with the library for Arm, which is compiled again only when its sources changed."""
    library = TREE / LIBRARY.relative_to(ROOT).with_suffix(".so")
    kept = compiled(str(ARM))
    shutil.rmtree(TREE, ignore_errors=True)
    for name in COPIED:
        ignored = shutil.ignore_patterns("libregard_native.*", "__pycache__")
        shutil.copytree(ROOT / name, TREE / name, ignore=ignored)
    shutil.copyfile(kept, library)
    return library


def on_arm(*words: str | Path) -> str:
    """What Python for Arm prints with these words, in the copy of this tree."""
    done = Emulated().run("-W", "ignore", *words, paths=[TREE], folder=TREE)
    return _printed(done)


def here(*words: str | Path) -> str:
    """The same in the Python of this machine."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    return _printed(done)


def _printed(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode:
        raise RuntimeError(f"Python failed with code {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def digests() -> tuple[int, int]:
    """How many of the calls of test_native_compilers.py give the bits of this machine, and how many there are."""
    library = TREE / LIBRARY.relative_to(ROOT).with_suffix(".so")
    arm = json.loads(on_arm("-c", DIGESTS, library))
    ours = json.loads(here("-c", DIGESTS, LIBRARY))
    same = sum(one == other for one, other in zip(arm, ours, strict=True))
    return same, len(ours)


def drawn(first: int, end: int) -> Found:
    """Drawn calls there and here, compared with their formulas and with each other."""
    words = ("-m", "tests.arm.calls", str(first), str(end))
    found = Found()
    there = on_arm(*words).splitlines()
    for line, our_line in zip(there, here(*words).splitlines(), strict=True):
        compare(json.loads(line), json.loads(our_line), found)
    return found


def compare(arm: dict[str, Any], ours: dict[str, Any], found: Found) -> None:
    """Count what one call gave on Arm, and say what is wrong."""
    assert arm["seed"] == ours["seed"]
    label = f"seed {arm['seed']}"
    found.count(arm["outcome"])
    if arm["outcome"] != ours["outcome"]:
        found.wrong.append(f"{label} is {arm['outcome']} on Arm and {ours['outcome']} here")
        return
    if arm["outcome"] != "right":
        if arm["outcome"] == "off":
            found.wrong.append(f"{label}: {arm['reason']}")
        return
    found.at_most("error in bounds", arm["share"])
    found.count("with gradients", arm["learns"])
    found.count("with NaN or infinity in hidden keys", bool(arm["planted"]))
    if not arm["threads agree"]:
        found.wrong.append(f"{label}: 3 threads give other bits than 1")
    for name, bits in arm["bits"].items():
        same = bits == ours["bits"][name]
        if name in arm["of kernel"]:
            found.count("results of the kernel")
            found.count("with the bits of x86-64", same)
            if not same:
                found.wrong.append(f"{label}: {name} has other bits than on x86-64")
        else:
            found.count("results that PyTorch computes in part")
            found.count("such results with the bits of x86-64", same)


def work(numbers: Sequence[int], folder: Path) -> Found:
    """The run of the long tier: a case is a drawn call, except the first one, which is the fixed ones."""
    prepare()
    found = Found()
    if numbers[0] == 0:
        same, calls = digests()
        found.count("fixed calls with the bits of x86-64", same)
        if same < calls:
            found.wrong.append(f"{calls - same} of {calls} fixed calls have other bits than here")
    for first, end in joined([number, number + 1] for number in numbers):
        found.add(drawn(first, end))
    return found
