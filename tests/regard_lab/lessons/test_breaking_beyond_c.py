"""Claims of the lessons of chapter "Beyond translation" fail when what they are about is broken."""

from teaching import changed_report, failing, starting


def test_transfer(monkeypatch):
    assert starting(
        failing(
            "transfer",
            ('classifier = encoder.changed(head="classes", classes=11)', 'classifier = encoder.changed(head="words")'),
        ),
        "The classifier takes over",
    )
    anew = ("encoder.changed(", "TextEncoder(TextEncoder.Config(vocab_size=2000, dim=64, layers=2)).changed(")
    for one in changed_report(monkeypatch, "transfer")["records"]:
        one["transfer"] = one["scratch"] + (0.1 if one["labels"] == 100 else 0.0)
        one["commonest"] = 0.4
    assert starting(
        failing("transfer", anew), "The classifier takes over", "With 300 labels", "It makes less than half",
        "With 100 labels", "All are far better",
    )  # fmt: skip


def test_answer_head(monkeypatch):
    figures = changed_report(monkeypatch, "answer_head")
    figures.update(head_share=0.9, by_place=0.6)
    figures["shares"][0][5] = 0.97
    figures["shown"]["weights"][10][0] = 0.9
    wide = ("SlidingWindow(window)", "SlidingWindow(4 * window)")
    assert starting(
        failing("answer_head", wide), "The head finds", "The same weights", "It does not count", "The weights in the",
        "A window in the head's own layer",
    )  # fmt: skip


def test_answer_head_without_parts(monkeypatch):
    replaced = changed_report(monkeypatch, "answer_head")["replaced"]
    replaced["windows"][2]["before"] = 0.7
    replaced["without_head"][3] = 0.7
    replaced["heads_kept"][-1]["share"] = 0.8
    assert starting(failing("answer_head"), "With narrow windows", "No single head", "Together the heads are needed")
