"""`regard view`: the explorer of a trained model, as a file or as a local page."""

import http.client
import json
import re
import signal
import subprocess
import sys

import pytest
from test_commands import regard

from regard.decoding.loading import TOKENISER_FILE
from regard.models import LanguageModel, RecurrentTranslator, TextEncoder, TranslationTransformer
from regard.text import Tokeniser

SENTENCE = "The animal didn't cross the street because it was too tired."
KINDS = {
    "transformer": (TranslationTransformer, {"heads": 2}),
    "bahdanau": (RecurrentTranslator, {"attention": "bahdanau"}),
    "none": (RecurrentTranslator, {"attention": "none"}),
    "language-model": (LanguageModel, {"heads": 2}),
    "encoder": (TextEncoder, {"heads": 2}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Models that were never trained, by their kind."""
    folder = tmp_path_factory.mktemp("runs")
    tokeniser = Tokeniser.train([SENTENCE, "das Tier, weil es er sie"] * 2, 400)
    for name, (kind, settings) in KINDS.items():
        model = kind(kind.Config(vocab_size=tokeniser.vocab_size, dim=16, **settings))
        model.save(folder / name, {TOKENISER_FILE: tokeniser.to_json()})
    return folder


def header(path):
    return json.loads(re.search(r'id="regard-header">(.*?)</script>', path.read_text("utf-8"))[1])


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("transformer", ["Cross-attention", "Encoder self-attention", "Decoder self-attention"]),
        ("bahdanau", ["Cross-attention"]),
        ("language-model", ["Self-attention"]),
        ("encoder", ["Self-attention"]),
    ],
)
def test_every_kind_of_model_is_exported(runs, tmp_path, kind, names):
    path = tmp_path / "page.html"
    answer = regard("view", runs / kind, SENTENCE, "--export", path)
    assert answer.returncode == 0, answer.stderr.decode()
    assert answer.stdout == b""
    found = header(path)
    assert [one["name"] for one in found["attentions"]] == names
    assert found["live"] is None
    assert bool(found["explained"]) == (kind != "encoder")


def test_a_picture_is_drawn(runs, tmp_path):
    path = tmp_path / "maps.png"
    assert regard("view", runs / "transformer", SENTENCE, "--png", path).returncode == 0
    assert path.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("kind", "arguments", "says"),
    [
        ("transformer", ["  "], "the TEXT is empty"),
        ("transformer", [SENTENCE, "--export", "page.txt"], "must be HTML|is HTML; give it a name that ends in .html"),
        ("transformer", [SENTENCE, "--export", "nowhere/page.html"], "its folder does not exist"),
        ("transformer", [SENTENCE, "--png", "a.svg"], "ends in .png"),
        ("transformer", [SENTENCE, "--instead", "es"], "--instead belongs to --why"),
        ("transformer", [SENTENCE, "--why", "Hund", "--instead", "er"], "'Hund' was not written"),
        ("none", [SENTENCE], "attention='none'"),
        ("language-model", [SENTENCE, "--why", "es", "--instead", "er"], "--why is for translations"),
        ("language-model", [SENTENCE, "--png", "a.png"], "--png is for translations"),
        ("nothing", [SENTENCE], "nothing"),
    ],
)
def test_a_mistake_is_one_sentence(runs, kind, arguments, says):
    answer = regard("view", runs / kind, *arguments)
    assert answer.returncode != 0
    assert re.search(says, answer.stderr.decode())
    assert "Traceback" not in answer.stderr.decode()


def test_the_page_is_served_until_it_is_interrupted(runs):
    command = [sys.executable, "-m", "regard", "view", str(runs / "transformer"), SENTENCE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            url = running.stdout.readline().strip()
            host, path = re.fullmatch(r"http://(127\.0\.0\.1:\d+)(/\S{32,}/)", url).groups()
            connection = http.client.HTTPConnection(host, timeout=30)
            connection.request("GET", path)
            assert b"regard-explorer" in connection.getresponse().read()
            connection.close()
            connection.request(
                "POST", f"{path}read", json.dumps({"text": "The street."}), {"Content-Type": "application/json"}
            )
            answer = json.loads(connection.getresponse().read())
            assert answer["header"]["texts"]["source"][:2] == ["The", "street"]
            connection.close()
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=30)
            assert running.returncode == 0
            assert said.endswith("ended\n")
            assert "Traceback" not in said
        finally:
            running.kill()
