"""Tests that are also run by `pytest`, here in processes of their own, counted, with other seeds or in other order."""

import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import machines

from .running import Found, each

ROOT = Path(__file__).parents[2]
OUTCOMES = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed)\b")
EXAMPLES = re.compile(
    r"(\d+) passing(?: examples)?, (\d+) failing(?: examples)?, and (\d+) invalid"
)
# begins the statistics of a test
OF_TEST = re.compile(r"^\S+::test_(\w+(?:\[.+\])?):$", re.MULTILINE)
STOPPED = re.compile(r"Stopped because (.+)")
GAVE_UP = re.compile(r"\* ([\d.]+%, gave up because: .+)")
STEPS = re.compile(r"^steps of state machines: (\d+)$", re.MULTILINE)
CHECKED = re.compile(r"^(\d+) calls checked$", re.MULTILINE)
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
PLUGIN = ["-p", "tests.long.plugin"]


def _of(side: str, names: str) -> list[str]:
    """Paths below a side's folder; a name without a folder's "/" or an ending is a folder, `|` begins other words."""
    return [f"tests/{side}/{name}" for name in names.split()]


# Tests of properties by hypothesis; each case runs all of them with another seed.
PROPERTIES = (
    *_of(
        "regard",
        "patterns/test_pattern_laws.py patterns/test_pattern_text.py patterns/test_same_document.py",
    ),
    *_of("regard", "contracts/test_laws.py backends/test_schedule_of_patterns.py"),
    *_of(
        "regard",
        "caches/test_cache_machine.py layers/test_layer_caches.py layers/test_multi_head.py",
    ),
    *_of(
        "regard_lab",
        "models/test_language_model.py models/test_language_state.py models/test_translators.py",
    ),
    *_of(
        "regard_lab",
        "decoding/test_sampling.py decoding/test_generator.py text/test_tokenisers.py text/test_batches.py",
    ),
    *_of(
        "regard_lab",
        "text/test_documents.py text/test_translation_data.py conversion/test_own_models.py",
    ),
)
# Laws of calls by backend, and of patterns. A case is known by its number, so new files come last.
LAW_FILES = _of("regard", "contracts/test_laws.py patterns/test_pattern_laws.py")
EACH_LAW = 1_000  # examples
# Every part of the suite, for memory that holds NaN; `regard` and `regard_lab` are the examples of docstrings.
FOLDERS = (
    *sorted({one.parent.relative_to(ROOT).as_posix() for one in ROOT.glob("tests/*/*/test_*.py")}),
    *_of("regard", "test_*.py"),
    *_of("regard_lab", "test_*.py"),
    "regard",
    "regard_lab",
)
# Slow tests that no other run has.
SLOW = (
    *_of("regard", "backends/test_flex.py"),
    *_of(
        "regard",
        "integrations/test_transformers_families.py integrations/test_transformers_latents.py",
    ),
    *_of(
        "regard",
        "integrations/test_transformers_shared_caches.py integrations/test_transformers_unchanged.py",
    ),
    *_of("regard", "integrations/test_runtimes.py integrations/test_diffusers.py"),
    *_of(
        "regard",
        "native/test_native_sanitized.py native/test_shipping.py native/test_native_lowered.py",
    ),
    *_of(
        "regard", "storage/test_storage_files.py storage/test_storage_tensors.py fuzz/test_fuzz.py"
    ),
    *_of(
        "regard_lab",
        "native/test_native_trained.py training/test_workers.py cli/test_training_commands.py",
    ),
    *_of("regard_lab", "cli/test_export_command.py docs/test_code_blocks.py docs/test_site.py"),
    *_of(
        "regard_lab",
        "lessons/test_every_lesson.py explorer/test_explorer_engine.py explorer/test_explorer_access.py",
    ),
)


def pytest_counted(
    arguments: Sequence[str], found: Found, label: str, environment: Mapping[str, str] | None = None
) -> str:
    """Run pytest and add what it counted; what failed is written down. Returns what it printed.

    What it printed when something failed lies in runs/long, in a file named by the label.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", *arguments]
    if environment is None:
        environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace"
    )
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr[-300:]]
    for number, name in OUTCOMES.findall(last[0]):
        found.count(name.removesuffix("s") if name == "errors" else name, int(number))
    if done.returncode:
        names = FAILED.findall(done.stdout) or [last[0]]
        found.wrong += [f"{label}: {name}" for name in names]
        kept = ROOT / "runs" / "long" / f"{re.sub(r'[^a-z0-9]+', '-', label.lower())}.txt"
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(done.stdout + done.stderr, "utf-8")
    return done.stdout


def tests(numbers: Sequence[int], folder: Path, *paths: str) -> Found:
    """A case is one argument of pytest; `-m slow PATH` selects the slow tests of a path."""
    found = Found()
    for number in numbers:
        words = paths[number].split("|")
        printed = pytest_counted(
            [*words, "-s"] if "slow" in words else words, found, paths[number].replace("|", " ")
        )
        found.count("calls", sum(map(int, CHECKED.findall(printed))))
    return found


@each
def examples(number: int, found: Found) -> None:
    """A case is one seed for every property; a failing example is printed by pytest with how to see it again."""
    options = [
        "--hypothesis-profile=long",
        f"--hypothesis-seed={number}",
        "--hypothesis-show-statistics",
    ]
    printed = pytest_counted([*options, *PLUGIN, *PROPERTIES], found, f"seed {number}")
    found.count("examples", sum(int(passing) for passing, _, _ in EXAMPLES.findall(printed)))
    found.count(
        "failing examples", sum(int(failing) for _, failing, _ in EXAMPLES.findall(printed))
    )
    found.count("steps of state machines", sum(map(int, STEPS.findall(printed))))


@functools.cache
def law_names() -> tuple[str, ...]:
    """The laws, as pytest calls them: the tests of their files that are given examples."""
    found = []
    for path in LAW_FILES:
        for node in ast.parse((ROOT / path).read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and any(
                "given" in ast.dump(one) for one in node.decorator_list
            ):
                found.append(f"{path}::{node.name}")
    return tuple(found)


@each
def laws(number: int, found: Found) -> None:
    """A case is one law, with 1,000 examples for each of its backends or mechanisms."""
    law = law_names()[number]
    options = [
        "--hypothesis-profile=laws",
        f"--hypothesis-seed={2000 + number}",
        "--hypothesis-show-statistics",
    ]
    count_examples(pytest_counted([*options, law], found, law), found)


def count_examples(printed: str, found: Found) -> None:
    """Add how many examples each test had by the statistics of hypothesis; of few, say how many calls were refused."""
    _, *parts = OF_TEST.split(printed)
    for name, told in zip(parts[::2], parts[1::2], strict=True):
        counts = EXAMPLES.findall(told)  # of each phase: passing, failing, refused
        passing, refused = (sum(int(one[at]) for one in counts) for at in (0, 2))
        found.count(f"law {name}", passing)
        found.count("refused", refused)
        if passing < EACH_LAW:
            why = "; ".join([*STOPPED.findall(told), *GAVE_UP.findall(told)])
            found.noted.append(f"{name}: {passing} examples, {refused} refused; {why}")


@each
def poisoned(number: int, found: Found) -> None:
    """A case is one folder of tests in which memory that nobody has written holds NaN."""
    name = FOLDERS[number]
    paths = (
        sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(name)) if "*" in name else [name]
    )
    pytest_counted(["--poison", *PLUGIN, *paths], found, name)


@each
def elsewhere(number: int, found: Found) -> None:
    """A case is the whole suite in another order of its files and of the tests in each, as on another machine."""
    name = list(machines.SETTINGS)[number % len(machines.SETTINGS)]
    # The suite holds the pages against the file of results, which the case before has changed.
    subprocess.run([sys.executable, "-m", "docs.making"], cwd=ROOT, check=True)
    with machines.busy_processes(machines.BUSY_PROCESSES * (name == "busy")):
        options = ["-n", "2", f"--shuffle={number}", *PLUGIN]
        pytest_counted(options, found, f"order {number}, {name}", machines.environment(name))
    found.count(f"as {name}")
