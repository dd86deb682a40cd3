"""The command line under a real torchrun: evaluate and translate, and a process that is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from regard_lab.decoding.lines import BLOCK
from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.models import TranslationTransformer
from regard_lab.text import Tokeniser

pytestmark = pytest.mark.slow  # each command imports torch in four or five processes

LINES = [f"{number} small words of line {number * 7 % 101}" for number in range(10 * BLOCK + 5)]
PATIENCE = 240  # seconds


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    tokeniser = Tokeniser.train(LINES[:80], 300)
    torch.manual_seed(0)
    config = TranslationTransformer.Config(
        vocab_size=tokeniser.vocab_size, dim=16, heads=2, encoder_layers=1, decoder_layers=1
    )
    TranslationTransformer(config).save(folder, {TOKENISER_FILE: tokeniser.to_json()})
    return folder


def command(processes: int, *arguments: Any) -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] * (
        processes > 1
    )
    return [sys.executable, *launcher, "-m", "regard_lab", *map(str, arguments)]


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def ran(processes: int, *arguments: Any) -> str:
    how: dict[str, Any] = {
        "capture_output": True,
        "text": True,
        "env": ENVIRONMENT,
        "timeout": PATIENCE,
    }
    done = subprocess.run(command(processes, *arguments), check=False, **how)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_evaluate_over_processes_prints_once_what_one_process_prints(run, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{line}\t{line} again\n" for line in LINES[:300]), encoding="utf-8")
    alone = json.loads(ran(1, "evaluate", run, pairs, "--beam", "2", "--json"))
    assert alone["perplexity"] > 1
    assert alone["count"] == 300
    assert json.loads(ran(3, "evaluate", run, pairs, "--beam", "2", "--json")) == alone


def children(launcher: int) -> dict[int, int]:
    """The processes that a torchrun started, by rank."""
    process_of_rank = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ranks = [int(variable[5:]) for variable in variables if variable.startswith(b"RANK=")]
        if parent == launcher and ranks:
            process_of_rank[ranks[0]] = int(folder.name)
    return process_of_rank


def test_translate_goes_on_after_a_process_is_killed_without_a_line_lost_or_doubled(run, tmp_path):
    source = tmp_path / "source.txt"
    out = tmp_path / "out.txt"
    alone = tmp_path / "alone.txt"
    source.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    options = ["translate", run, "--beam", "4", "--input", source]
    started = subprocess.Popen(
        command(2, *options, "--out", out),
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    parts = tmp_path / "out.txt.parts"
    ends = time.monotonic() + PATIENCE
    while not list(parts.glob("*[13579].txt")):  # the second process has written a block
        assert time.monotonic() < ends, "no block was written"
        assert started.poll() is None, started.communicate()[1]
        time.sleep(0.01)
    os.kill(children(started.pid)[1], signal.SIGKILL)
    said = started.communicate(timeout=PATIENCE)[1].decode()
    assert started.returncode != 0, said
    assert not out.exists()
    done = {path.name: path.read_bytes() for path in parts.glob("*.txt")}
    assert 0 < len(done) < 11
    with (parts / min(done)).open(
        "ab"
    ) as file:  # a mark, by which a part that is computed again is seen
        file.write(b"marked\n")
    ran(3, *options, "--out", out)
    lines = out.read_text(encoding="utf-8").splitlines()
    ran(1, *options, "--out", alone)
    first_marked = BLOCK * (int(min(done)[:8]) + 1)
    assert lines.pop(first_marked) == "marked"
    assert lines == alone.read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(LINES)
    assert not parts.exists()
