"""Ctrl-C ends `regard view` with one line at every moment: with 130 before the page is served, and then with 0."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from interrupted_view import MOMENTS

from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.models import TranslationTransformer
from regard_lab.text import Tokeniser

SERVED = ("while the page is served", "while a sentence is read")


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """By moment: the exit code, the output, and the remarks."""
    folder = tmp_path_factory.mktemp("interrupted")
    run = folder / "run"
    tokeniser = Tokeniser.train(["The animal slept."] * 2, 300)
    torch.manual_seed(0)
    model = TranslationTransformer(TranslationTransformer.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2))
    model.save(run, {TOKENISER_FILE: tokeniser.to_json()})
    program = Path(__file__).with_name("interrupted_view.py")
    command = [sys.executable, str(program), str(run), str(folder)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # a fork has no other threads, and would wait for them
    answer = subprocess.run(command, capture_output=True, text=True, timeout=900, env=alone)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interruption_is_one_line_and_a_documented_code(ended, moment):
    code, output, remarks = ended[moment]
    *before, last = remarks.splitlines()
    assert all(line.startswith("the page is served to this machine until Ctrl-C") for line in before)
    if moment in SERVED or (before and moment.startswith("after")):
        assert (code, last) == (0, "ended")
        assert output.startswith("http://127.0.0.1:")
    else:
        assert (code, last, output) == (130, "regard: interrupted", "")
