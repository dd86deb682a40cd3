"""Lessons measure times, which differ on every machine and of which no claim speaks: here each is measured once."""

import pytest

from regard_lab.bench.measuring import Pace
from regard_lab.teaching import measures


@pytest.fixture(autouse=True)
def _one_round_of_measurements(monkeypatch):
    monkeypatch.setattr(measures, "PACE", Pace(rounds=1, slow_rounds=1, shortest=0.0))
