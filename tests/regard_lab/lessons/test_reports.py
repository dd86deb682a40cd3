"""Reports that lessons read are those of the benchmarks."""

import pytest

from benchmarks.lesson_reports import REPORTS
from regard_lab.teaching import read_report


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_the_one_of_its_benchmark(name):
    made = REPORTS[name]()
    assert read_report(name).figures == made.figures
    assert read_report(name).command == made.command
