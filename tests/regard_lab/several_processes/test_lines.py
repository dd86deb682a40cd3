"""Lines of a file divided among processes: in order, none lost and none doubled, after kills and with other numbers."""

import json
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from cli.commanding import Forked

from regard.errors import ArgumentError, DataError, OccupiedError
from regard_lab.decoding import Generator, Sampling, share_lines
from regard_lab.decoding.lines import BLOCK, SharedWork, sharing
from regard_lab.decoding.loading import TOKENISER_FILE, WORDS_FILE
from regard_lab.models import LanguageConfig, LanguageModel
from regard_lab.text import Tokeniser
from regard_lab.text.seen_words import SeenWords
from regard_lab.training.recipes.evaluation import evaluate_text

LINES = [f"line {number} of a file" for number in range(5 * BLOCK + 7)]


def marked(some, first):
    return [f"{first + number}: {line}" for number, line in enumerate(some)]


EXPECTED = "".join(f"{number}: {line}\n" for number, line in enumerate(LINES))


@pytest.mark.parametrize("processes", [1, 2, 9])
def test_lines_are_written_in_order_by_any_number_of_processes(processes, tmp_path):
    out = tmp_path / "out.txt"
    order = [*range(1, processes), 0]  # in whatever order they finish
    done = [
        share_lines(LINES, out, marked, settings="", rank=rank, processes=processes)
        for rank in order
    ]
    assert done[-1]
    assert out.read_text(encoding="utf-8") == EXPECTED
    assert not (tmp_path / "out.txt.parts").exists()
    assert share_lines(
        LINES, out, lambda *_: pytest.fail("computed again"), settings="", rank=3, processes=4
    )


@pytest.mark.parametrize("killed_at", [0, 1, 4])
def test_after_a_kill_only_what_is_missing_is_computed(killed_at, tmp_path):
    out = tmp_path / "out.txt"
    computed = []

    def compute(some, first):
        if len(computed) == killed_at:
            raise KeyboardInterrupt
        computed.append(first)
        return marked(some, first)

    with pytest.raises(KeyboardInterrupt):
        share_lines(LINES, out, compute, settings="", rank=0, processes=1)
    assert not out.exists()
    before = list(computed)
    for rank in (1, 0):  # with another number of processes
        share_lines(
            LINES,
            out,
            lambda *a: computed.append(a[1]) or marked(*a),
            settings="",
            rank=rank,
            processes=2,
        )
    assert out.read_text(encoding="utf-8") == EXPECTED
    assert sorted(computed) == [block * BLOCK for block in range(6)]
    assert computed[: len(before)] == before


@pytest.mark.parametrize("processes", [1, 2])
def test_a_process_that_begins_while_another_claims_the_file_is_not_refused(
    processes, tmp_path, monkeypatch
):
    """The other one computes its blocks, half of them or all, after this one found no record and before it goes on."""
    out = tmp_path / "out.txt"
    exists = Path.exists

    def exists_and_the_other_begins(path: Path) -> bool:
        there = exists(path)
        if path.name == "out.txt.record":
            monkeypatch.undo()
            share_lines(LINES, out, marked, settings="", rank=0, processes=processes)
        return there

    monkeypatch.setattr(Path, "exists", exists_and_the_other_begins)
    assert share_lines(LINES, out, marked, settings="", rank=1, processes=2)
    assert out.read_text(encoding="utf-8") == EXPECTED


def test_the_same_command_started_twice_leaves_the_file_alone_and_no_folder(tmp_path):
    out = tmp_path / "out.txt"

    def second(some, first):
        return [line.upper() for line in some]

    def first_and_second(some, first):
        # while this command computes its second block, the other one does everything
        if first == BLOCK:
            share_lines(LINES, out, second, settings="upper", rank=0, processes=1)
        return second(some, first)

    assert share_lines(LINES, out, first_and_second, settings="upper", rank=0, processes=1)
    assert out.read_text(encoding="utf-8").splitlines() == [line.upper() for line in LINES]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.txt", "out.txt.record"]


def test_other_lines_or_settings_are_refused(tmp_path):
    out = tmp_path / "out.txt"
    share_lines(LINES, out, marked, settings="beam 1", rank=0, processes=2)
    for lines, settings in ((LINES[1:], "beam 1"), (LINES, "beam 4")):
        with pytest.raises(
            OccupiedError, match="belongs to other lines, another model or other options"
        ):
            share_lines(lines, out, marked, settings=settings, rank=0, processes=2)
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(OccupiedError, match="without a record"):
        share_lines(LINES, tmp_path / "mine.txt", marked, settings="", rank=0, processes=1)


def test_a_process_that_is_not_one_of_them_and_lines_that_give_others_are_refused(
    tmp_path, monkeypatch
):
    with pytest.raises(
        ArgumentError, match="process 2 of 2; the processes are numbered from 0 to 1"
    ):
        share_lines(LINES, tmp_path / "out.txt", marked, settings="", rank=2, processes=2)
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ArgumentError, match="the environment variable RANK is 'first'"):
        share_lines(LINES, tmp_path / "out.txt", marked, settings="")
    assert not list(tmp_path.iterdir())
    monkeypatch.delenv("RANK")
    for wrong in (lambda some, first: some[1:], lambda some, first: ["a\nb"] * len(some)):
        with pytest.raises(DataError, match="each line gives one"):
            share_lines(LINES, tmp_path / "out.txt", wrong, settings="", rank=0, processes=1)


def test_processes_that_cannot_be_joined_are_refused_with_a_sentence(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        there = {
            "RANK": "0",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(taken.getsockname()[1]),
        }
        for name, value in there.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(
            ArgumentError, match=r"cannot be joined \(.*EADDRINUSE.*\); start them by torchrun"
        ):
            sharing().__enter__()
    monkeypatch.delenv("MASTER_PORT")
    with pytest.raises(
        ArgumentError, match=r"WORLD_SIZE is 2, and the processes cannot be joined .*MASTER_PORT"
    ):
        sharing().__enter__()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    tokeniser = Tokeniser.train(LINES[:50], 300)
    torch.manual_seed(0)
    model = LanguageModel(
        LanguageConfig(vocab_size=tokeniser.vocab_size, dim=16, heads=2, layers=1)
    )
    model.save(
        folder,
        {TOKENISER_FILE: tokeniser.to_json(), WORDS_FILE: SeenWords.of(LINES[:50]).to_json()},
    )
    return folder


def scores(run, text):
    share = SharedWork(dist.get_rank(), dist.get_world_size())
    return evaluate_text(run, [text], share=share)


def test_a_language_model_is_evaluated_over_processes_to_the_same_digits(run, tmp_path, pools):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(LINES * 20), encoding="utf-8")
    alone = evaluate_text(run, [text])
    assert pools(2).run(scores, run, text) == [alone] * 2


def test_generate_on_two_processes_writes_what_one_writes(run, tmp_path):
    """As torchrun starts them: each process knows its rank and how many there are."""
    source = tmp_path / "prompts.txt"
    out = tmp_path / "out.jsonl"
    prompts = LINES[: BLOCK + 3]
    source.write_text("".join(f"{prompt}\n" for prompt in prompts), encoding="utf-8")
    words = ("generate", run, "--input", source, "--out", out, "--max-tokens", 2, "--json")
    started = [Forked(*words, RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    said = [process.communicate(timeout=120)[1].decode() for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert any("is complete: 67 lines" in line for line in said)
    assert any("not in the training of this model" in line for line in said)
    written = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(written) == len(prompts)
    generator = Generator.load(run)
    for row in (0, BLOCK - 1, BLOCK, BLOCK + 2):
        ((alone,),) = generator.generate(
            [prompts[row]], max_tokens=2, stop=[], sampling=Sampling(), first_row=row
        )
        assert written[row]["text"] == alone.text


def test_several_processes_need_files_and_say_so(run, tmp_path):
    wrong = {
        (): "which would all read the same standard input",
        ("--input", "a.txt"): "go together",
        ("--input", str(tmp_path / "none.txt"), "--out", str(tmp_path / "b.txt")): "is not a file",
    }
    for arguments, words in wrong.items():
        process = Forked("generate", run, *arguments, RANK="0", WORLD_SIZE="2")
        said = process.communicate(timeout=120)[1].decode()
        assert process.returncode != 0
        assert words in " ".join(said.split())
        assert "Traceback" not in said
