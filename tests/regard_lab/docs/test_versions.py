"""One version: in the package, in pyproject.toml, in the citation file and in the changelog."""

import re
import tomllib
from pathlib import Path

import yaml

import regard as rg

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")


def versions_of(changelog: str) -> list[str]:
    return re.findall(r"^## (\d+\.\d+\.\d+)", changelog, re.MULTILINE)


def test_there_is_one_version():
    assert rg.__version__ == PROJECT["version"] == CITATION["version"] == versions_of(CHANGELOG)[0]


def test_versions_of_the_changelog_fall():
    numbers = [tuple(map(int, version.split("."))) for version in versions_of(CHANGELOG)]
    assert numbers == sorted(set(numbers), reverse=True)
    assert versions_of("## 0.2.0\n\n## 0.1.0 (x)\n### 3.0.0\n") == ["0.2.0", "0.1.0"]
