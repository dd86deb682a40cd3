"""The commands as people run them: answers on standard output, one sentence for a mistake, and the right exit code."""

import io
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest
import torch
from forked import Forked

from regard_lab.cli import main
from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.models import TranslationTransformer
from regard_lab.text import Tokeniser

LINES = ["the animal sleeps", "a street", "the old animal"]


@dataclass
class Answer:
    returncode: int
    stdout: bytes
    stderr: bytes


def regard(*arguments, stdin=b""):
    """The command line, run in this process to save loading torch again; the three last tests fork."""
    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for name in ("stdout", "stderr")}
    before = sys.argv, sys.stdin, sys.stdout, sys.stderr
    sys.argv, sys.stdin = ["regard", *map(str, arguments)], io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    sys.stdout, sys.stderr = streams["stdout"], streams["stderr"]
    try:
        main()
    except SystemExit as leaving:
        code = leaving.code
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr = before
    for stream in streams.values():
        stream.flush()
    return Answer(code, *(stream.buffer.getvalue() for stream in streams.values()))


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A translator that was never trained: its words are noise, its commands work."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    tokeniser = Tokeniser.train(LINES, 300)
    torch.manual_seed(9)  # its translations have words that occur once
    model = TranslationTransformer(TranslationTransformer.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2))
    model.save(folder, {TOKENISER_FILE: tokeniser.to_json()})
    return folder


def modules_after(program: str) -> tuple[str, set[str]]:
    """What a program prints in a Python of its own, and the modules that it has loaded then."""
    program = f"import sys\n{program}\nprint('modules:', *sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    said, _, names = answer.stdout.rpartition("modules:")
    return said, set(names.split())


def test_help_loads_the_parser_and_little_else_so_that_it_is_instant():
    """Counted in modules, which is the same on every machine."""
    _, parser = modules_after("import typer")
    said, found = modules_after(
        "try:\n import regard_lab.cli as c; sys.argv = ['regard', '--help']; c.main()\n"
        "except SystemExit as e: assert not e.code"
    )
    assert "Commands:" in said
    assert not {"torch", "numpy", "rich", "tokenizers", "matplotlib"} & found
    own = {name for name in found - parser if not name.startswith("regard")}
    assert len(own) <= len(parser) / 2, sorted(own)


def test_show_draws_the_pattern():
    answer = regard("show", "causal & sliding_window(4)", "--length", "3")
    assert answer.returncode == 0
    assert answer.stdout.decode() == (
        "causal & sliding_window(4): 6 of 9 pairs\n    0 1 2\n  0 ■ · ·\n  1 ■ ■ ·\n  2 ■ ■ ■\n"
        "each row is a query, each column a key\n"
    )


def test_show_answers_with_json_and_png(tmp_path):
    record = json.loads(regard("show", "causal", "--length", "2", "--keys", "3", "--json").stdout)
    assert record == {"pattern": "causal", "q_len": 2, "k_len": 3, "count": 5, "allowed": [[1, 1, 0], [1, 1, 1]]}
    answer = regard("show", "causal", "--png", tmp_path / "causal.png")
    assert answer.returncode == 0
    assert (tmp_path / "causal.png").read_bytes().startswith(b"\x89PNG")


def test_each_line_in_is_one_line_out(run_folder):
    lines = b"the animal sleeps\n\na street\r\n  \nan emoji \xf0\x9f\xa6\x8a and $x$\nno newline at the end"
    answer = regard("translate", run_folder, stdin=lines)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count(b"\n") == 6
    answers = answer.stdout.split(b"\n")
    assert answers[1] == answers[3] == b""
    assert answers[0] != b""


def test_sentences_and_json_and_beams_answer_alike(run_folder):
    plain = regard("translate", run_folder, *LINES)
    records = [json.loads(line) for line in regard("translate", run_folder, *LINES, "--json").stdout.splitlines()]
    assert [record["text"] for record in records] == plain.stdout.decode().splitlines()
    assert [record["source"] for record in records] == LINES
    assert (
        regard("translate", run_folder, "--beam", "3", "--normalisation", "average", stdin=b"a street\n").returncode
        == 0
    )


def test_translate_draws_its_attention(run_folder, tmp_path):
    answer = regard("translate", run_folder, "the animal <b>sleeps</b>", "--picture", tmp_path / "look.png")
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "look.png").read_bytes().startswith(b"\x89PNG")


def test_evaluate_scores_a_file(run_folder, tmp_path):
    (tmp_path / "test.tsv").write_text("a street\teine Straße\nthe animal\tdas Tier\n")
    record = json.loads(regard("evaluate", run_folder, tmp_path / "test.tsv", "--json").stdout)
    assert {"bleu", "bleu_signature", "chrf", "chrf_signature", "exact_match", "perplexity", "count"} <= record.keys()
    assert record["count"] == 2
    spoken = regard("evaluate", run_folder, tmp_path / "test.tsv").stdout.decode()
    assert "BLEU" in spoken
    assert record["bleu_signature"] in spoken


MISTAKES = [
    ((), 2, "Usage"),
    (("shwo",), 2, "shwo"),
    (("show",), 2, "name a pattern"),
    (("show", "cuasal"), 2, "at character 1: there is no pattern 'cuasal'; did you mean 'causal'?"),
    (("show", "causal &"), 2, "a pattern is missing"),
    (("show", "causal_window(0)"), 2, "1 or more"),
    (("show", "causal", "--length", "0"), 2, "length"),
    (("show", "causal", "--length", "10000"), 2, "10000 x 10000"),
    (("show", "causal", "--png", "picture.jpg"), 2, ".png"),
    (("show", "causal", "--png", "no/such/folder/picture.png"), 2, "picture.png"),
    (("translate", "nowhere", "hello"), 2, "nowhere"),
    (("translate", "{file}", "hello"), 2, "{file}"),
    (("translate", "{run}", "a", "b", "--picture", "x.png"), 2, "one sentence"),
    (("translate", "{run}", "a", "--beam", "0"), 2, "beam"),
    (("translate", "{run}", "a", "--normalisation", "google"), 2, "none, average, gnmt"),
    (("evaluate", "{run}", "missing.tsv"), 2, "missing.tsv"),
    (("evaluate", "{run}"), 2, "test split"),
    (("train",), 2, "translation"),
    (("train", "translation"), 2, "--out"),
    (("train", "translation", "--out", "{new}"), 2, "--data is missing"),
    (("train", "translation", "--out", "{new}", "--data", "missing.tsv"), 2, "missing.tsv"),
    (("train", "translation", "--out", "{new}", "--data", "{file}"), 2, "{file}"),
    (("train", "translation", "--out", "{new}", "--data", "pronouns", "--model", "gpt"), 2, "transformer"),
    (("train", "translation", "--out", "{new}", "--data", "{pairs}", "--heads", "7"), 2, "multiple of heads, 7"),
    (
        ("train", "translation", "--out", "{new}", "--data", "{pairs}", "--attention", "x"),
        2,
        "there is no pattern 'x'; 'regard show --list' prints all",
    ),
    (
        ("train", "translation", "--out", "{new}", "--data", "{pairs}", "--learning-rate", "-1"),
        2,
        "--learning-rate is -1",
    ),
    (("train", "translation", "--out", "{file}", "--data", "{pairs}"), 2, "{file}"),
    (("demo", "--steps", "0"), 2, "steps"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), MISTAKES, ids=lambda value: None)
def test_a_mistake_is_one_sentence_and_the_right_exit_code(arguments, code, words, run_folder, tmp_path):
    (tmp_path / "file.xyz").write_text("this is no run and no table")
    (tmp_path / "pairs.tsv").write_text("".join(f"word {n}\tWort {n}\n" for n in range(60)))
    names = {"run": run_folder, "file": tmp_path / "file.xyz", "new": tmp_path / "new", "pairs": tmp_path / "pairs.tsv"}
    fill = lambda text: text.format(**names) if text.startswith("{") else text  # noqa: E731
    answer = regard(*map(fill, arguments))
    said = answer.stderr.decode() + answer.stdout.decode()
    assert answer.returncode == code, said
    assert fill(words) in said
    assert "Traceback" not in said
    assert answer.stdout == b"" or arguments in ((), ("train",))
    assert len(answer.stderr.splitlines()) <= 5 or arguments in ((), ("train",))


def test_a_user_trains_stops_goes_on_translates_and_scores(tmp_path):
    data = tmp_path / "pairs.tsv"
    rows = [f"sentence number {n}\tSatz Nummer {n}\n" for n in range(120)]
    data.write_bytes(b"\xef\xbb\xbf" + "".join([*rows, "no tab here\n", rows[0], "\n", "\t\n"]).encode())
    run = tmp_path / "a run"
    options = ["--dim", 16, "--heads", 2, "--layers", 1, "--vocab-size", 300, "--batch-tokens", 200, "--cpu"]
    began = regard("train", "translation", "--data", data, "--out", run, "--steps", 4, "--validate-every", 2, *options)
    said = began.stderr.decode()
    assert began.returncode == 0, said
    assert "kept 120 of 124 lines" in said
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    again = regard("train", "translation", "--data", data, "--out", run, "--steps", 6, *options)
    assert again.returncode == 2
    assert "resume" in again.stderr.decode()
    on = regard("train", "translation", "--out", run, "--resume", "--steps", 6, "--cpu")
    assert on.returncode == 0, on.stderr
    assert "6 steps" in on.stderr.decode()
    other = regard("train", "translation", "--out", run, "--resume", "--dim", 32)
    assert other.returncode == 2
    assert "dim 16 -> 32" in other.stderr.decode()
    assert regard("translate", run, stdin=b"sentence number 7\n").stdout.count(b"\n") == 1
    record = json.loads(regard("evaluate", run, "--json").stdout)
    assert record["count"] >= 1


def test_a_reader_that_leaves_early_is_no_traceback(run_folder):
    process = Forked("translate", run_folder)
    process.stdout.close()
    _, said = process.communicate(b"a street\n" * 600, timeout=1200)
    assert b"Traceback" not in said
    assert (process.returncode, said) == (-signal.SIGPIPE, b"")


def test_ctrl_c_is_one_word(run_folder):
    process = Forked("translate", run_folder)
    process.stdin.write(b"a street\n" * 256)
    process.stdin.flush()
    process.stdout.readline()  # it works on the first lines and waits for more
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=1200)
    assert (process.returncode, said.decode().strip()) == (130, "regard: interrupted")


def test_ctrl_c_in_training_saves_and_says_how_to_go_on(tmp_path):
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"sentence number {n}\tSatz Nummer {n}\n" for n in range(120)))
    options = ["--dim", "16", "--heads", "2", "--layers", "1", "--vocab-size", "300", "--cpu", "--validate-every", "5"]
    out = tmp_path / "run"
    process = Forked("train", "translation", "--data", data, "--out", out, "--steps", 100_000, *options)
    while b"validation loss" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=1200)
    assert process.returncode == 130
    last, command = said.decode().splitlines()[-2:]
    assert last.startswith("regard: interrupted: ")
    assert last.endswith("; go on with:")
    assert command == f"regard train translation --out {tmp_path / 'run'} --resume"
    steps = int(last.split(" steps")[0].split()[-1].replace(",", ""))
    on = regard("train", "translation", "--out", tmp_path / "run", "--resume", "--steps", steps + 2, "--cpu")
    assert on.returncode == 0, on.stderr
    assert f"going on after step {steps}" in on.stderr.decode()


def test_the_name_of_a_picture_is_checked_before_any_work(tmp_path):
    answer = regard("translate", tmp_path / "no-run", "a street", "--picture", tmp_path / "a.txt")
    assert answer.returncode == 2
    assert b"a.txt" in answer.stderr
    assert b"no-run" not in answer.stderr
