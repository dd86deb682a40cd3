"""Claims of the lessons of chapter "Writing text quickly" fail when what they are about is broken."""

import pytest
from teaching import failing, starting

import regard_lab.teaching


@pytest.fixture(autouse=True)
def _untimed(monkeypatch):
    monkeypatch.setattr(regard_lab.teaching, "milliseconds", lambda calls: dict.fromkeys(calls, 1.0))


def test_generation():
    forgets = ('model.start(text, "static", capacity=text', 'model.start(text[:, -1:], "static", capacity=text')
    shared = ("heads=8, kv_heads=kv_heads", "heads=8, kv_heads=8")
    claims = "A step with a cache gives", "With a cache each word", "The cache keeps 2"
    assert starting(failing("generation", forgets, shared), *claims)
