"""Checks at small scale what papers state their mechanisms can and cannot learn, and writes a report.

python benchmarks/behaviour.py [NAME ...] [--out DIR] [--resume] [--quick]
"""

from benchmarks.behaviour.running import main

if __name__ == "__main__":
    main()
