"""Ctrl-C ends with 130 and names what is kept; a reader that leaves ends a command by SIGPIPE; neither a traceback."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from commanding import SMALL, Forked, cpu_seconds, regard, succeeded

from regard_lab.cli import demo, evaluate, lesson, view
from regard_lab.cli.interrupts import heed_interrupts, quiet_interrupts
from regard_lab.conversion.uptraining import Uptraining
from regard_lab.decoding import translator
from regard_lab.models.storage import CHECKPOINTS_FILE
from regard_lab.training.recipes import LanguageModelTraining

HEEDED = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
START = HEEDED + "sys.argv = ['regard', *sys.argv[1:]]; from regard_lab.cli import main; main()"


def real(*words):
    """A Python of its own, in which nothing is imported yet."""
    return subprocess.Popen(
        [sys.executable, "-c", START, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize("command", [("show", "--list"), ("translate", "{run}")])
def test_a_reader_that_leaves_ends_a_command_as_it_ends_other_programs(command, run_folder):
    process = Forked(*(word.format(run=run_folder) for word in command))
    process.stdout.close()
    _, err = process.communicate(
        *([b"a street\n" * 600] if "translate" in command else []), timeout=600
    )
    assert (process.returncode, err) == (-signal.SIGPIPE, b"")


@pytest.mark.parametrize(
    ("command", "seconds"),
    [
        (("show", "causal"), 0.3),
        (("train", "translation", "--data", "pronouns", "--out", "{new}", "--cpu"), 1.5),
    ],
)
def test_ctrl_c_before_the_first_step_is_one_word(command, seconds, tmp_path):
    """Also while modules are imported; the waits are CPU seconds, so that a busy machine changes little."""
    process = real(*(word.format(new=tmp_path / "new") for word in command))
    while process.poll() is None and cpu_seconds(process.pid) < seconds:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    if process.returncode in (0, -signal.SIGINT):  # it was done before, or just then
        assert command[0] == "show"
        return
    assert (process.returncode, err.decode().splitlines()[-1]) == (130, "regard: interrupted")
    assert not re.search(b"Traceback|Exception", err)


def test_ctrl_c_between_lines_counts_what_is_printed(run_folder):
    process = Forked("translate", run_folder)
    process.stdin.write(b"a street\n" * 256)
    process.stdin.flush()
    process.stdout.readline()  # it works on the first lines and waits for more
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert (process.returncode, err.decode().strip()) == (
        130,
        "regard: interrupted; 256 translations printed",
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_training_saves_and_names_the_command_that_goes_on(data, tmp_path, number):
    out = tmp_path / "run"
    options = ("--steps", 100_000, "--validate-every", 3, *SMALL)
    process = Forked("train", "translation", "--data", data / "pairs.tsv", "--out", out, *options)
    process.wait_for(b"validation loss")
    process.send_signal(number)
    process.wait_for(b"stopping: after this step the run is saved")  # at once, before it is saved
    _, err = process.communicate(timeout=1200)
    assert process.returncode == 130
    last, command = err.decode().splitlines()[-2:]
    assert command == f"regard train translation --out {out} --resume"
    steps = int(
        re.fullmatch("regard: interrupted: ([0-9,]+) steps.*; go on with:", last)[1].replace(
            ",", ""
        )
    )
    assert (out / f"step-{steps:06d}").is_dir()
    on = succeeded("train", "translation", "--out", out, "--resume", "--steps", steps + 1, "--cpu")
    assert f"going on after step {steps}" in on.err


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.001)  # in which Python notices


def before_the_page_is_made():
    def interrupted(*arguments, **named):
        interrupt()
        return original(*arguments, **named)

    original, view.ExplorerServer = view.ExplorerServer, interrupted


def while_an_object_is_freed():
    """Where Python prints an exception, and goes on."""

    class Freed:
        def __del__(self):
            interrupt()

    def interrupted(*arguments, **named):
        Freed()
        return original(*arguments, **named)

    original, view.open_run = view.open_run, interrupted


def while_a_sentence_is_read():
    """A thread of the server is inside PyTorch, and comes back to Python while that ends."""
    original = view.ExplorerServer.serve_forever

    def read(body):
        threading.Timer(0.1, interrupt).start()
        while True:
            torch.ones(1000, 1000).exp_()

    def ask(server):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"/{server.token}/walk", json.dumps({"text": "a"}), headers)
        connection.getresponse()

    def serve(server):
        server.asks["walk"] = read
        threading.Thread(target=ask, args=(server,), daemon=True).start()
        original(server)

    view.ExplorerServer.serve_forever = serve


@pytest.mark.parametrize(
    "moment", [before_the_page_is_made, while_an_object_is_freed, while_a_sentence_is_read]
)
def test_an_interruption_of_a_view_is_one_line_and_a_documented_code(moment, run_folder):
    process = Forked("view", run_folder, "The animal slept.", prepare=moment)
    output, remarks = (text.decode() for text in process.communicate())
    *before, last = [line for line in remarks.splitlines() if "without an end" not in line]
    assert all(
        line.startswith("the page is served to this machine until Ctrl-C") for line in before
    )
    if moment is while_a_sentence_is_read:
        assert (process.returncode, last) == (0, "ended")
        assert output.startswith("http://127.0.0.1:")
    else:
        assert (process.returncode, last, output) == (130, "regard: interrupted", "")


def interrupted(file):
    """A function that is interrupted after it has written the file; before, where there is none."""

    def work(*arguments, **options):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("{}")
        raise KeyboardInterrupt

    return work


KEPT = {
    "train": (
        ("train", "language-model", "--data", "{text}"),
        LanguageModelTraining,
        "prepare",
        CHECKPOINTS_FILE,
        [
            "regard: interrupted; {out} keeps the run as it was last saved; go on with:",
            "regard train language-model --out {out} --resume",
        ],
    ),
    "compare": (
        ("compare", "--runs", "{run},{run}", "--data", "{text}"),
        evaluate.comparing,
        "compare_runs",
        "compare.json",
        ["regard: interrupted; {out} has the report of what was evaluated"],
    ),
    "convert": (
        (
            "convert",
            "kv-heads",
            "model",
            "--kv-heads",
            "2",
            "--text",
            "{text}",
            "--uptrain-steps",
            "9",
        ),
        Uptraining,
        "convert",
        CHECKPOINTS_FILE,
        [
            "regard: interrupted; {out} keeps the model as it was last saved, and the same command goes on"
        ],
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_ctrl_c_names_what_is_kept_and_how_to_go_on(name, tmp_path, monkeypatch, run_folder, data):
    command, owner, function, file, lines = KEPT[name]
    command = [word.format(run=run_folder, text=data / "text.txt") for word in command]
    out = tmp_path / "out"
    for written in (None, out / file):
        monkeypatch.setattr(owner, function, interrupted(written))
        answer = regard(*command, "--out", out)
        expected = (
            ["regard: interrupted"] if written is None else [line.format(out=out) for line in lines]
        )
        assert (answer.returncode, answer.err.splitlines()[-len(expected) :]) == (130, expected)


@pytest.mark.parametrize("writes", [True, False])
def test_a_report_counts_as_kept_if_it_was_written_now_whatever_the_clock_says(
    writes, tmp_path, monkeypatch, run_folder, data
):
    report = tmp_path / "compare.json"
    report.write_text("of an earlier comparison")

    def compare(*arguments, **options):
        if writes:
            report.write_text("{}")
            os.utime(report, ns=(0, 0))  # the time beside a file may lag behind the clock
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate.comparing, "compare_runs", compare)
    runs = f"{run_folder},{run_folder}"
    answer = regard("compare", "--runs", runs, "--data", data / "text.txt", "--out", tmp_path)
    ending = f"; {tmp_path} has the report of what was evaluated" if writes else ""
    assert (answer.returncode, answer.last) == (130, f"regard: interrupted{ending}")


@pytest.mark.parametrize(
    ("lines", "printed"), [(("a", "a street", "the street is wide"), 2), (("the street", "a"), 0)]
)
def test_ctrl_c_in_a_beam_search_prints_the_first_lines_that_were_done(
    lines, printed, monkeypatch, run_folder
):
    original = translator.batches_in_order

    def all_but_the_last(encoded, _):
        yield from original(encoded, 1)[:-1]
        raise KeyboardInterrupt

    whole = regard("translate", run_folder, "--beam", "2", *lines).out.splitlines()
    monkeypatch.setattr(translator, "batches_in_order", all_but_the_last)
    answer = regard("translate", run_folder, "--beam", "2", *lines)
    assert (answer.returncode, answer.out.splitlines()) == (130, whole[:printed])
    assert (
        answer.last
        == f"regard: interrupted{f'; {printed} translations printed' if printed else ''}"
    )


@pytest.mark.parametrize("named", [False, True])
def test_ctrl_c_in_an_evaluation_keeps_the_sentences_that_were_done(
    named, tmp_path, monkeypatch, run_folder, data
):
    original = translator.batches_in_order
    pairs = data / "pairs.tsv"
    out = tmp_path / "rows.tsv"

    def first(encoded, _):
        yield next(iter(original(encoded, 60)))
        raise KeyboardInterrupt

    monkeypatch.setattr(translator, "batches_in_order", first)
    answer = regard("evaluate", run_folder, pairs, *(["--out", out] if named else []))
    count, total = map(int, re.findall(r"(\d+) of (\d+) sentences done", answer.last)[0])
    assert (answer.returncode, answer.out, 0 < count < total) == (130, "", True)
    ending = f", and {out} has them with their scores" if named else ""
    assert answer.last == f"regard: interrupted; {count} of {total} sentences done{ending}"
    if named:
        header, *rows = (line.split("\t") for line in out.read_text().splitlines())
        done = [f"{row[0]}\t{row[1]}" for row in rows]
        assert (header[:3], len(done)) == (["source", "reference", "output"], count)
        assert [
            line for line in pairs.read_text().splitlines() if line in done
        ] == done  # in the order of the test
        # its own table may be written anew, others may not
        again = regard("evaluate", run_folder, pairs, "--out", out)
        assert (
            again.returncode,
            regard("evaluate", run_folder, pairs, "--out", pairs).returncode,
        ) == (130, 2)


def test_ctrl_c_in_a_comparison_of_runs_keeps_what_was_evaluated(
    run_folder, tmp_path, monkeypatch, data
):
    evaluate_run = evaluate.comparing.evaluate_run
    done = []

    def once(run, *rest, **more):
        if done:
            raise KeyboardInterrupt
        done.append(run)
        return evaluate_run(run, *rest, **more)

    monkeypatch.setattr(evaluate.comparing, "evaluate_run", once)
    with pytest.raises(KeyboardInterrupt):
        evaluate.comparing.compare_runs([run_folder, run_folder], [data / "pairs.tsv"], tmp_path)
    assert [row["run"] for row in json.loads((tmp_path / "compare.json").read_text())["rows"]] == [
        str(run_folder)
    ]


def test_ctrl_c_in_a_lesson_says_how_much_of_it_is_printed(monkeypatch):
    monkeypatch.setattr(
        lesson, "_print_cell", lambda cell, *_: interrupt() if "claims" in cell.tags else None
    )
    answer = regard("lesson", "causal")
    printed, parts = map(
        int, re.findall(r"; (\d+) of (\d+) parts of the lesson printed$", answer.last)[0]
    )
    assert answer.returncode == 130
    assert 0 < printed < parts


def test_ctrl_c_after_the_training_of_the_demo_keeps_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr(
        demo,
        "load_translation_data",
        lambda *_, **__: SimpleNamespace(notes=["two pairs"], train=[], test=[]),
    )
    done = SimpleNamespace(stopped="steps", steps=9, wall_seconds=1.0, cpu_seconds=1.0)
    monkeypatch.setattr(demo, "_train", lambda *_: done)
    monkeypatch.setattr(demo.Translator, "load", interrupted(None))
    answer = regard("demo", "--out", tmp_path / "run")
    assert answer.returncode == 130
    assert answer.last == (
        f"regard: interrupted; the trained model is kept in {tmp_path / 'run'}, and the same command goes on from there"
    )


def test_ctrl_c_ends_the_program_only_while_nothing_is_to_be_saved_and_only_in_the_main_thread():
    usual = signal.default_int_handler
    heard = []

    def work():
        for heeded in (False, True):
            with quiet_interrupts():
                if heeded:
                    heed_interrupts()
                heard.append(signal.getsignal(signal.SIGINT) is usual)
            heard.append(signal.getsignal(signal.SIGINT) is usual)

    work()
    assert heard == [False, True, True, True]
    heard.clear()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [True] * 4
