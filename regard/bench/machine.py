"""Where and with what something was measured: versions, processor, threads; nothing that names a person or a host."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from regard import __version__

# Optional packages: the extra that brings each, and what it is for.
PACKAGES: dict[str, tuple[str, str]] = {
    "numpy": ("train", "the oracle: doctor, bench, scores"),
    "typer": ("train", "the command line"),
    "rich": ("train", "progress on a terminal"),
    "matplotlib": ("train", "pictures"),
    "tokenizers": ("train", "sub-words, so training and translating"),
    "safetensors": ("train", "saving and loading models"),
    "accelerate": ("train", "training on any device"),
    "sacrebleu": ("train", "BLEU and chrF"),
    "transformers": ("bench", "Longformer and BigBird as peers of the bench"),
    "local-attention": ("bench", "a peer of the bench"),
    "performer-pytorch": ("bench", "a peer of the bench"),
    "reformer-pytorch": ("bench", "a peer of the bench"),
    "pytorch-fast-transformers": ("", "a peer of the bench, compiled here"),
    "xformers": ("", "a peer of the bench on CUDA"),
}


def environment(device: str = "cpu") -> dict[str, Any]:
    """Everything that a measurement depends on beside the code."""
    return {
        "regard": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "packages": {name: found for name in PACKAGES if (found := package_version(name)) is not None},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
    }


def package_version(name: str) -> str | None:
    """The version installed here, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def processor() -> str:
    """The processor's name and widest vectors, as far as this system tells."""
    capability = torch.backends.cpu.get_cpu_capability()
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or 'unknown'}, {capability}"
