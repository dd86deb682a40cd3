"""The statistics of a call, such as entropy and the largest weights.

`observe` computes them from dense weights, for the reference backend. `second_pass` computes them for all others: from
queries, keys and the log-sum-exp, in memory linear in the length.
"""
