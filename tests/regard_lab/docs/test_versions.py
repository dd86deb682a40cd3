"""One version: in the package, in pyproject.toml, in the citation file and in the changelog."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import regard as rg

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
# The keys of the Citation File Format 1.2.0 that a file must have, and others that it may have.
REQUIRED = {"authors", "cff-version", "message", "title"}
ALLOWED = REQUIRED | {
    "abstract", "commit", "contact", "date-released", "doi", "identifiers", "keywords", "license", "license-url",
    "preferred-citation", "references", "repository", "repository-artifact", "repository-code", "type", "url",
    "version",
}  # fmt: skip


def versions_of(changelog: str) -> list[str]:
    return re.findall(r"^## (\d+\.\d+\.\d+)", changelog, re.MULTILINE)


def test_there_is_one_version():
    assert rg.__version__ == PROJECT["version"] == CITATION["version"] == versions_of(CHANGELOG)[0]


def test_versions_of_the_changelog_fall():
    numbers = [tuple(map(int, one.split("."))) for one in versions_of(CHANGELOG)]
    assert numbers == sorted(set(numbers), reverse=True)
    assert versions_of("## 0.2.0\n\n## 0.1.0 (x)\n### 3.0.0\n") == ["0.2.0", "0.1.0"]


def test_the_citation_file_keeps_its_format():
    assert CITATION.keys() >= REQUIRED
    assert CITATION.keys() <= ALLOWED
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["type"] in ("software", "dataset")
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["authors"]
    assert all({"name"} <= one.keys() or {"family-names", "given-names"} <= one.keys() for one in CITATION["authors"])
    assert len(set(CITATION["keywords"])) == len(CITATION["keywords"]) > 0


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_policy_of_versions_is_linked(page):
    assert "docs/versions.md" in (ROOT / page).read_text("utf-8")
