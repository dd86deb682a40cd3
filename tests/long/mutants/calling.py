"""Which tests call which functions of the library, and how long each takes; found by running them once."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from .copies import ROOT, pytest_in_fork

# Files that test the rooms where mutants are planted, in one process; what runs in processes of its own is not seen.
TESTS: dict[str, str] = {
    "patterns": "pattern_laws pattern_leaves pattern_operators pattern_structure pattern_text pattern_truth per_head "
    "random_blocks same_document stacks written_apart key_mask explicit_padding identity registry",
    "caches": "kinds paged state cache_files cache_machine",
    "storage": "storage_files storage_tensors leftovers",
    "models": "storage language_state translation_steps recurrent_translator config_limits every_kind language_model "
    "language_architectures text_encoder translation_transformer recurrent_cells",
    "decoding": "filters generate generator likeliest sampling search stops translator cache_kinds",
    "training": "engine schedule training_config run run_saving resume run_folder lock training_log averaging choosing "
    "fingerprint recipes translation_task language_task classification_task masked_words workers pace run_explanation",
    "conversion": "conversion_heads conversion_own_models alignment calibration conversion_report folder_conversion "
    "families_in_transformers",
    "contracts": "laws oracle statistics plan conventions empty_rows hidden_keys merge refusals sinks mechanisms sizes "
    "fixed_laws mechanism_laws second_derivatives draws enrolled decode_grid costs",
    "backends": "decode dropout linear schedule_of_patterns streamed tiled second_pass score_blocking tiled_kernels "
    "native_cost kernel_frames fused_bias score_diagonals",
    "native": "native_steps native_values native_statistics native_layout native_views",
    "layers": "multi_head layer_caches layer_mechanisms layer_sinks value_dim projection from_pytorch feed_forward",
    "integrations": "torch_layer",
    "mechanisms": "kernelised_reference linformer lsh lsh_fast performer random_feature score_formulas scores_local "
    "mechanism_text own_scores",
    "bias": "alibi t5",
    "positions": "positions",
    "cli": "hostile_text numeric_options command_table counting open_words defaults commands walkthrough_command "
    "lesson_command plan_command show_layers own_files generate_command why_command view_command convert_command "
    "what_is_kept train_commands training_runs complexity_command help hints lenses_command any_terminal exit_codes "
    "view_interrupts doctor demo engineers_hour damaged_runs train_every_model",
    ".": "call planned plans_of_any_size problem numbers wrong_kinds merged around_torch autocast jagged transforms "
    "docstrings shaped",
}
# Examples in docstrings; a folder is recorded as one file is.
EXAMPLES = (
    "regard/patterns", "regard/core", "regard/backends", "regard/layers", "regard/mechanisms", "regard/bias.py",
    "regard/positions.py", "regard_lab/training", "regard/storage", "regard_lab/decoding",
    "regard_lab/conversion", "regard_lab/cli",
)  # fmt: skip
LONGEST = 8.0  # seconds of CPU: a longer test is not used for mutants


class Recorder:
    """A pytest plugin that notes the functions of regard that each test calls, and its CPU time."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder / "regard") + "/"
        self.tests: dict[str, tuple[float, list[str]]] = {}
        self.seen: set[CodeType] = set()
        self.before: set[str] = set()

    def _trace(self, frame: FrameType, event: str, argument: Any) -> None:
        self.seen.add(frame.f_code)

    def _names(self) -> set[str]:
        own = [one for one in self.seen if one.co_filename.startswith(self.folder)]
        return {f"regard/{one.co_filename[len(self.folder) :]}:{one.co_qualname}" for one in own}

    def pytest_collection(self) -> None:
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def pytest_collection_finish(self) -> None:
        sys.settrace(None)
        self.before, self.seen = self._names(), set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.seen = set()
        began = time.process_time()
        sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            self.tests[item.nodeid] = (round(time.process_time() - began, 3), sorted(self._names()))
            self.noted()

    def noted(self) -> None:
        """Called after each test, since a file that takes too long is killed."""


def record(copy: Path, path: str, seconds: float, log: Path) -> dict[str, Any]:
    """What the tests of one file call: `{"tests": {id: [seconds, functions]}, "collecting": functions}`."""
    result = log.with_suffix(".json")
    result.unlink(missing_ok=True)

    class Writing(Recorder):
        def noted(self) -> None:
            result.write_text(json.dumps({"tests": self.tests, "collecting": sorted(self.before)}))

    pytest_in_fork(copy, [path], Writing(copy), seconds, log)
    return json.loads(result.read_text()) if result.exists() else {"tests": {}, "collecting": []}


def test_files() -> list[str]:
    """The files of TESTS, one of each folder in turn, so that an early part of the list already holds every room."""
    lists = [
        [
            next(
                f"tests/{side}/{folder}/test_{name}.py".replace("/./", "/")
                for side in ("regard", "regard_lab")
                if (ROOT / f"tests/{side}/{folder}/test_{name}.py").exists()
            )
            for name in names.split()
        ]
        for folder, names in TESTS.items()
    ]
    return [names[at] for at in range(max(map(len, lists))) for names in lists if at < len(names)] + [*EXAMPLES]


class Callers:
    """The record of all files: which tests call a function."""

    def __init__(self, files: dict[str, dict[str, Any]]) -> None:
        self.seconds: dict[str, float] = {}
        self.by_function: dict[str, set[str]] = {}
        for record in files.values():
            for test, (seconds, functions) in record["tests"].items():
                if seconds <= LONGEST:
                    self.seconds[test] = seconds
                    for function in {*functions, *record["collecting"]}:
                        self.by_function.setdefault(function, set()).add(test)

    def of(self, path: str, function: str) -> list[str]:
        """The tests that call a function ("": anything of the file), the quickest first, one file after the other."""
        if function:
            tests = self.by_function.get(f"{path}:{function}", set())
        else:
            tests = set().union(*(tests for name, tests in self.by_function.items() if name.startswith(f"{path}:")))
        room = path.split("/")[1].removesuffix(".py")
        return sorted(tests, key=lambda test: (f"/{room}" not in test, self.seconds[test], test))
