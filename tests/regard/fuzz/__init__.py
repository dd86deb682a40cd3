"""A differential fuzzer: random calls, computed by every backend and by formulas that share no code with regard.

A case is a function of one whole number. `meanings` and `counting` say what patterns and dropout mean, `cases` draws
what is called, `tensors` the numbers, `oracle` computes it in float64, `bounds` says how far rounding may lead away,
`judging` asks the backends; `mechanisms` are the other kind of cases, `running` counts and shrinks.

    python -m tests.regard.fuzz --cases 20000 --from 0
"""
