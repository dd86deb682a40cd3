"""Lessons that check claims of well-known articles about attention, with regard's public functions.

A lesson computes one record (`Taught`), from which terminal output, JSON, a picture and a page of the docs are made.
Everything is seeded, so that every machine prints the same results, except for times, whose tables are marked as
measured.
"""

from regard_lab.lessons.taught import LESSONS, Claim, Lesson, Settings, Table, Taught, find_lesson, to_markdown

__all__ = ["LESSONS", "Claim", "Lesson", "Settings", "Table", "Taught", "find_lesson", "to_markdown"]
