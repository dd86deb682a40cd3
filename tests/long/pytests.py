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

from .running import Found, each_case

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
    """The paths of files in the tests of a package; spaces stand between their names."""
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
    *sorted(
        {file.parent.relative_to(ROOT).as_posix() for file in ROOT.glob("tests/*/*/test_*.py")}
    ),
    *_of("regard", "test_*.py"),
    *_of("regard_lab", "test_*.py"),
    "regard",
    "regard_lab",
)
# Slow tests that no other run has; those that `each_value` leaves out are one case by themselves.
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
        "native/test_native_sanitized.py native/test_shipping.py native/test_native_lowered.py "
        "native/test_native_compilers.py",
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
    *_of("regard_lab", "cli/test_using.py conversion/test_serving.py"),
    *_of(
        "regard_lab",
        "explorer/test_explorer_first.py explorer/test_explorer_browser.py decoding/test_speculating.py",
    ),
    *_of(
        "regard",
        "integrations/test_transformers_attaching.py integrations/test_transformers_masks.py "
        "integrations/test_transformers_packed_texts.py",
    ),
    *_of(
        "regard",
        "integrations/test_transformers_recurrent.py integrations/test_transformers_rewinding.py",
    ),
    *_of(
        "regard",
        "test_compiled_varlen.py test_each_value.py test_layout.py backends/test_windows.py",
    ),
)


def run_pytest(
    arguments: Sequence[str], found: Found, label: str, environment: Mapping[str, str] | None = None
) -> str:
    """Run pytest and add what it counted; what failed is written down. Returns what it printed.

    What it printed when something failed lies in runs/long, in a file named by the label.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", *arguments]
    if environment is None:
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace"
    )
    lines = done.stdout.strip().splitlines()
    summary = lines[-1] if lines else done.stderr[-300:]
    for number, outcome in OUTCOMES.findall(summary):
        found.count("error" if outcome == "errors" else outcome, int(number))
    if done.returncode:
        found.wrong += [f"{label}: {name}" for name in FAILED.findall(done.stdout) or [summary]]
        file = re.sub(r"[^a-z0-9]+", "-", label.lower())
        path = ROOT / "runs" / "long" / f"{file}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(done.stdout + done.stderr, "utf-8")
    return done.stdout


def tests(numbers: Sequence[int], folder: Path, *paths: str) -> Found:
    """A case is one argument of pytest; `-m slow PATH` selects the slow tests of a path."""
    found = Found()
    for number in numbers:
        words = paths[number].split("|")
        options = ["-s"] if "slow" in words else []
        printed = run_pytest([*words, *options], found, paths[number].replace("|", " "))
        found.count("calls", sum(map(int, CHECKED.findall(printed))))
    return found


@each_case
def examples(number: int, found: Found) -> None:
    """A case is one seed for every property; a failing example is printed by pytest with how to see it again."""
    options = [
        "--hypothesis-profile=long",
        f"--hypothesis-seed={number}",
        "--hypothesis-show-statistics",
    ]
    printed = run_pytest([*options, *PLUGIN, *PROPERTIES], found, f"seed {number}")
    passing, failing, _ = examples_of(printed)
    found.count("examples", passing)
    found.count("failing examples", failing)
    found.count("steps of state machines", sum(map(int, STEPS.findall(printed))))


@functools.cache
def law_names() -> tuple[str, ...]:
    """The laws, as pytest calls them: the tests of their files that are given examples."""
    names = []
    for path in LAW_FILES:
        for node in ast.parse((ROOT / path).read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                decorators = " ".join(map(ast.dump, node.decorator_list))
                if "given" in decorators:
                    names.append(f"{path}::{node.name}")
    return tuple(names)


@each_case
def laws(number: int, found: Found) -> None:
    """A case is one law, with 1,000 examples for each of its backends or mechanisms."""
    law = law_names()[number]
    options = [
        "--hypothesis-profile=laws",
        f"--hypothesis-seed={2000 + number}",
        "--hypothesis-show-statistics",
    ]
    count_examples(run_pytest([*options, law], found, law), found)


def examples_of(statistics: str) -> tuple[int, int, int]:
    """How many examples passed, failed and were refused, in all phases of the statistics of hypothesis."""
    passing = failing = refused = 0
    for phase in EXAMPLES.findall(statistics):
        passing += int(phase[0])
        failing += int(phase[1])
        refused += int(phase[2])
    return passing, failing, refused


def count_examples(printed: str, found: Found) -> None:
    """Add how many examples each test had by the statistics of hypothesis; of few, say how many calls were refused."""
    _, *parts = OF_TEST.split(printed)
    for name, statistics in zip(parts[::2], parts[1::2], strict=True):
        passing, _, refused = examples_of(statistics)
        found.count(f"law {name}", passing)
        found.count("refused", refused)
        if passing < EACH_LAW:
            why = "; ".join([*STOPPED.findall(statistics), *GAVE_UP.findall(statistics)])
            found.noted.append(f"{name}: {passing} examples, {refused} refused; {why}")


@each_case
def poisoned(number: int, found: Found) -> None:
    """A case is one folder of tests in which memory that nobody has written holds NaN."""
    name = FOLDERS[number]
    paths = [name]
    if "*" in name:
        paths = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(name))
    run_pytest(["--poison", *PLUGIN, *paths], found, name)


@each_case
def elsewhere(number: int, found: Found) -> None:
    """A case is the whole suite in another order of its files and of the tests in each, as on another machine."""
    name = list(machines.SETTINGS)[number % len(machines.SETTINGS)]
    # The suite compares the pages with the file of results, which the case before has changed.
    subprocess.run([sys.executable, "-m", "docs.making"], cwd=ROOT, check=True)
    with machines.busy_processes(machines.BUSY_PROCESSES if name == "busy" else 0):
        options = ["-n", "2", f"--shuffle={number}", *PLUGIN]
        run_pytest(options, found, f"order {number}, {name}", machines.environment(name))
    found.count(f"as {name}")
