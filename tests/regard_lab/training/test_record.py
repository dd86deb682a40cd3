"""The log has every step once, whatever was killed when."""

import pytest

from regard.errors import CheckpointError, DataError
from regard_lab.training import curves, draw_curves, read_log
from regard_lab.training.log import Log, _render


def lines_up_to(step: int) -> list[dict]:
    lines = []
    for number in range(1, step + 1):
        lines.append({"step": number, "kind": "training", "loss": float(number)})
    return lines


@pytest.fixture
def path(tmp_path):
    log = Log(tmp_path / "log.jsonl", step=0)
    for line in lines_up_to(5):
        log.write(line)
    return tmp_path / "log.jsonl"


def test_every_torn_end_is_repaired(path):
    whole = path.read_bytes()
    last_line = whole.rindex(b"\n", 0, -1) + 1
    for length in range(last_line, len(whole)):
        path.write_bytes(whole[:length])
        assert read_log(path) == lines_up_to(4)
        Log(path, step=5).write(lines_up_to(5)[-1])
        assert read_log(path) == lines_up_to(5)


def test_what_a_power_cut_left_after_the_checkpoint_is_cut(path):
    with open(path, "ab") as file:
        file.write(b"\0" * 30 + b"\n" + b'{"step": 6}\n')
    Log(path, step=5)
    assert read_log(path) == lines_up_to(5)


@pytest.mark.parametrize(
    "line", ["{\n", '{"step": 6}\n', "\0\n", _render({"loss": 1.0}), _render({"step": 6.5})]
)
def test_a_line_that_is_none_is_refused_with_its_number(path, line):
    path.write_bytes(path.read_bytes() + line.encode())
    with pytest.raises(CheckpointError, match=r"log\.jsonl, line 6"):
        read_log(path)


@pytest.mark.parametrize(
    ("order", "number", "reason"),
    [
        ((0, 1, 1, 2), 3, "a second line of step 2"),
        ((0, 1, 2, 0, 1, 3), 4, "of step 1 and comes after step 3"),
        ((0, 3, 1, 2, 4), 3, "of step 2 and comes after step 4"),
    ],
)
def test_doubled_and_moved_lines_are_refused_and_each_step_is_read_once(
    path, order, number, reason
):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[number] for number in order))
    with pytest.raises(CheckpointError, match=rf"log\.jsonl, line {number}, is {reason}"):
        read_log(path)
    lost = []
    steps = [line["step"] for line in read_log(path, lost)]
    assert reason in lost[0]
    assert steps == sorted(set(steps))


def test_numbers_that_json_lacks_become_null(path):
    Log(path, step=0).write({"step": 1, "loss": float("nan"), "norm": float("inf")})
    assert read_log(path) == [{"step": 1, "loss": None, "norm": None}]


def png_size(path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def test_curves_are_drawn_from_one_line_or_more_and_refused_from_none(path, tmp_path):
    log = Log(path, step=0)
    with pytest.raises(DataError, match="no loss in its 0 lines"):
        draw_curves(path, tmp_path / "curves.png")
    for step in (10, 20):
        log.write({"step": step, "kind": "training", "loss": 3.0 / step, "learning_rate": 0.1})
        draw_curves(path, tmp_path / f"{step}.png")
        assert png_size(tmp_path / f"{step}.png") == (1050, 750)
        log.write({"step": step, "kind": "validation", "loss": 2.0 / step})
    log.write({"step": 30, "kind": "training", "loss": float("nan"), "learning_rate": 0.1})
    draw_curves(path, tmp_path / "curves.png")
    assert png_size(tmp_path / "curves.png") == (1050, 750)


def axes_of(path, tmp_path, monkeypatch):
    """The axes of the losses that a log gives."""
    drawn = []
    monkeypatch.setattr(curves, "_mark_skills", lambda axes, lines: drawn.append(axes))
    draw_curves(path, tmp_path / "curves.png")
    return drawn[0]


def test_losses_have_a_logarithmic_axis_unless_one_is_zero(path, tmp_path, monkeypatch):
    log = Log(path, step=0)
    log.write({"step": 10, "kind": "training", "loss": 3.0, "learning_rate": 0.1})
    log.write({"step": 10, "kind": "validation", "loss": 0.002})
    assert axes_of(path, tmp_path, monkeypatch).get_yscale() == "log"
    log.write({"step": 20, "kind": "validation", "loss": 0.0})
    assert axes_of(path, tmp_path, monkeypatch).get_yscale() == "linear"


def test_the_first_validation_with_a_learned_skill_is_marked_once():
    lines = [
        {"step": 10, "right_pronouns": 0.949, "right_placeholders": None},
        {"step": 20, "right_pronouns": 0.95, "right_placeholders": 0.1},
        {"step": 30, "right_pronouns": 0.2, "right_placeholders": 1.0},
        {"step": 40, "right_pronouns": 1.0},
    ]
    assert curves.learned_at(lines) == {"pronouns": 20, "placeholders": 30}

    class Axes:
        lines = ()

        def axvline(self, step, **style):
            self.lines += (step,)

        def annotate(self, text, place, **style):
            assert "95% right at step" in text

    axes = Axes()
    curves._mark_skills(axes, lines)
    assert axes.lines == (20, 30)
