"""The long tier: runs that take minutes to hours, in parts of at most 50 minutes, and the figures they found.

    python -m tests.long                        every run, with its figure today
    python -m tests.long kills                  goes on with a run, at most 50 minutes
    python -m tests.long kills --shard 2/4      a quarter of its cases, so that several machines or processes share it

Each run is a list of numbered cases. What they found is added to `benchmarks/results/reliability.json` after every
few cases, so an interrupted run goes on where it stopped. `docs/reliability.md` is made from that file.
"""
