import torch
from teaching import changed_figures, failing, starting

from benchmarks.lesson_reports import of_one_head
from regard_lab.lessons import find_lesson, one_head
from regard_lab.lessons.report import read_report


def test_the_report_is_the_one_of_the_benchmark():
    report = read_report("one_head")
    assert (report.figures, report.command) == (of_one_head().figures, of_one_head().command)


def test_the_middle_weights_are_those_of_the_formula():
    middle = find_lesson("one_head").teach().numbers["middle"]
    queries = torch.tensor(middle["queries"])
    scores = queries * torch.tensor([-1.0, 0.1, 1.0])[:, None]
    torch.testing.assert_close(torch.tensor(middle["weights"]), scores.softmax(0), atol=1e-4, rtol=0)


def test_two_heads_that_look_alike_are_seen(monkeypatch):
    real = one_head.reading_layer

    def alike(heads):
        layer = real(heads)
        half = one_head.DIM // 2
        if heads == 2:
            layer.to_q.weight.data[half:] = layer.to_q.weight.data[:half]
        return layer

    monkeypatch.setattr(one_head, "reading_layer", alike)
    assert starting(failing("one_head"), "Two heads of half the size")


def test_a_head_that_sees_one_word_is_seen(monkeypatch):
    real = one_head.reading_layer

    def single(heads):
        layer = real(heads)
        if heads == 1:
            layer.to_q.weight.data[one_head.READ[1]] = 0
        return layer

    monkeypatch.setattr(one_head, "reading_layer", single)
    assert starting(failing("one_head"), "One head can attend", "It returns their mean")


def test_a_layer_with_more_parameters_is_seen(monkeypatch):
    real = one_head.MultiHeadAttention
    monkeypatch.setattr(
        one_head,
        "MultiHeadAttention",
        lambda dim, heads, projection_bias: real(dim, heads, projection_bias=heads == 2),
    )
    assert starting(failing("one_head"), "The number of heads changes", "Two heads of half the size")


def test_heads_that_share_their_weights_are_seen(monkeypatch):
    real = one_head.attention
    monkeypatch.setattr(one_head, "attention", lambda q, k, v: real(q[:, :1].expand_as(q), k[:, :1].expand_as(k), v))
    assert starting(failing("one_head"), "With random weights too")


def test_another_score_is_seen(monkeypatch):
    """With the negative distance as score, the middle key is chosen by a query near it."""
    real = one_head.attention_detail

    def by_distance(q, k, v, scale, want):
        if q.shape[-1] == 1:
            q, k = torch.cat([q, torch.ones_like(q)], -1), torch.cat([k, -k.square() / 2], -1)
        return real(q, k, v, scale=scale, want=want)

    monkeypatch.setattr(one_head, "attention_detail", by_distance)
    assert starting(failing("one_head"), "A head of one number")


def test_keys_on_a_line_are_seen(monkeypatch):
    real = one_head.attention_detail

    def flat(q, k, v, scale, want):
        return real(q, k * torch.tensor([1.0, 0.0]) if k.shape[-1] == 2 else k, v, scale=scale, want=want)

    monkeypatch.setattr(one_head, "attention_detail", flat)
    assert starting(failing("one_head"), "A head of two numbers")


def test_another_report_is_seen(monkeypatch):
    changed_figures(monkeypatch, "one_head")["heads"][0]["exact_match"] = 0.8
    assert starting(failing("one_head"), "The trained translator")
