"""Lessons: what articles about attention claim, put to the test with regard's own calls.

A lesson computes one record (`Taught`), which a terminal, JSON, a picture and a page of the docs all show. Everything
is seeded, so that another machine prints the same; what it cannot (times) stands in tables marked as measured.
"""

from regard.lessons.taught import LESSONS, Claim, Lesson, Settings, Table, Taught, find_lesson, to_markdown

__all__ = ["LESSONS", "Claim", "Lesson", "Settings", "Table", "Taught", "find_lesson", "to_markdown"]
