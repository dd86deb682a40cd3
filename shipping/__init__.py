"""What is shipped and how it is tried: wheels for every machine, a release, and a Python for Arm that is emulated."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
