"""Claims of the lesson on cost and length fail when what they are about is broken."""

from teaching import changed_report, failing, starting


def test_complexity(monkeypatch):
    patterns = failing(
        "complexity",
        ('"causal": lambda n: p.Causal()', '"causal": lambda n: p.CausalWindow(64)'),
        ("p.Strided(root(n))", "p.Strided(16)"),
        ('"window": lambda n: p.SlidingWindow(256)', '"window": lambda n: p.Full()'),
    )
    assert starting(
        patterns, "Twice as many words", "The pairs of strided", "The work of recurrent", "Self-attention, global",
        "For windows and convolutions",
    )  # fmt: skip
    steps = ("""["path"]""", """["path"] - 1""")  # a recurrent network that skips a word
    figures = changed_report(monkeypatch, "complexity")
    for row in figures.values():
        row["exponent"] = row["promised"]
    figures["gru"]["cheaper_from"] = "not up to 16,384"
    assert starting(failing("complexity", steps), "For windows", "Measured times give", "On one CPU thread")
