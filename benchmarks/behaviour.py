"""What the papers say their mechanisms can and cannot learn, at small scale: trains, judges, and writes a report.

python benchmarks/behaviour.py [NAME ...] [--out DIR] [--resume] [--quick]
"""

from benchmarks.behaviour.running import main

if __name__ == "__main__":
    main()
