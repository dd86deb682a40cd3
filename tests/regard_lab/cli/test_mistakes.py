"""Whatever is typed wrongly ends with 2 and one sentence before any work; what is damaged or cannot be done with 1."""

import shlex

import pytest
from commanding import refusal, regard
from refusals import REFUSALS

from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.models.encoder import EncoderConfig, TextEncoder
from regard_lab.text import Tokeniser
from regard_lab.training.recipes import reading

# Options that count or measure, by the beginning of the command.
NUMBERS = {
    "plan --q-len 8": "--q-len --k-len --heads --head-dim --v-dim --batch --dropout",
    "train translation --out {new} --data {pairs}": "--dim --seed --steps --heads --batch-tokens",
    "train language-model --out {new} --data {text}": "--dim --block --vocab-size",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory, run_folder, writer, data):
    """Files and folders by the names that rows have for them; `new` does not exist."""
    folder = tmp_path_factory.mktemp("places")
    (folder / "file.xyz").write_text("neither a run nor a table\n")
    (folder / "blank.txt").write_text("\n")
    (folder / "strange.tsv").write_text("even\tthe bird number 2\nprime\tthe bird number 2 sang\n")
    (folder / "empty").mkdir()
    (folder / "damaged").mkdir()
    (folder / "damaged" / "config.json").write_text("{}")

    tokeniser = Tokeniser.train(["the bird sang"], 300)
    sizes = {"dim": 16, "heads": 2, "layers": 1, "head": "classes", "classes": 2}
    sorter = TextEncoder(EncoderConfig(vocab_size=tokeniser.vocab_size, **sizes))
    sorter.save(folder / "sorter", {TOKENISER_FILE: tokeniser.to_json()})
    sorter.save(folder / "wordless")
    return {
        "empty": folder / "empty",
        "damaged": folder / "damaged",
        "sorter": folder / "sorter",
        "wordless": folder / "wordless",
        "new": folder / "new",
        "missing": folder / "nowhere",
        "file": folder / "file.xyz",
        "blank": folder / "blank.txt",
        "strange": folder / "strange.tsv",
        "run": run_folder,
        "writer": writer,
        "pairs": data / "pairs.tsv",
        "text": data / "text.txt",
        "labels": data / "labels.tsv",
    }


def words_of(command, places):
    """The words of a command; places are filled in after it is split, since folders may have spaces."""
    return [word.format(**places) if "{" in word else word for word in shlex.split(command)]


def fault_of(command, row, places):
    """What is wrong about the answer to a row; None if nothing is."""
    rest, _, words = row.partition("-> ")
    code, colon, rest_after_code = rest.partition(": ")
    if colon:
        rest = rest_after_code
    answer = regard(*words_of(f"{command} {rest}", places))
    if answer.returncode != (int(code) if colon else 2):
        return f"ends with {answer.returncode}: {answer.err}"
    if answer.stdout or "Traceback" in answer.err:
        return f"prints {answer.out}{answer.err}"
    if words.format(**places) not in " ".join(answer.err.split()):
        return answer.err
    sentences = [line for line in answer.err.splitlines() if line.startswith("regard: ")]
    if not answer.err.startswith("Usage") and sentences != [answer.last]:
        return f"more than a sentence: {answer.err}"
    return "leaves a folder" if places["new"].exists() else None


@pytest.mark.parametrize("command", REFUSALS)
def test_a_mistake_is_one_sentence_with_its_exit_code_before_any_work(command, places):
    faults = {}
    for row in REFUSALS[command].strip().splitlines():
        faults[row.strip()] = fault_of(command, row.strip(), places)
    assert faults
    assert not {row: fault for row, fault in faults.items() if fault}


@pytest.mark.parametrize("command", NUMBERS)
def test_a_number_that_no_option_means_is_refused(command, places):
    for option in NUMBERS[command].split():
        for number in ("1" + "0" * 30, "9" * 5000, "nan", "x", "-1"):
            answer = regard(*words_of(command, places), option, number)
            assert answer.returncode == 2, (option, number, answer.err)
            assert "Traceback" not in answer.err
            assert answer.err.strip()
            assert not places["new"].exists()


@pytest.mark.parametrize("command", ["generate", "translate", "classify", "evaluate"])
def test_a_folder_of_hugging_face_is_a_usage_error_that_names_where_to_use_it(command, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_attention_heads": 8}')
    answer = regard(command, tmp_path, "pairs.tsv")
    assert answer.returncode == 2
    assert f"{tmp_path} holds a model of Hugging Face" in answer.err
    assert "docs/recipes/hugging-face.md" in answer.err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("explore", "'view'"),  # "export" has letters in common and another meaning
        ("explorer", "'view'"),
        ("quality", "'evaluate'"),
        ("trian", "'train'"),
        ("benchmark", "'bench'"),
    ],
)
def test_a_command_is_found_by_what_it_is_about_or_by_its_letters(typed, meant):
    assert f"No such command '{typed}'. Did you mean {meant}?" in regard(typed).err


def test_groups_of_commands_alone_print_their_help():
    for words, part in {"": "Usage", "train": "translation", "convert": "kv-heads"}.items():
        answer = regard(*words.split())
        assert answer.returncode == 2
        assert part in answer.out + answer.err


def test_the_corpus_of_a_training_needs_no_file_and_its_options_are_checked_first(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(reading, "make_split", lambda *_: pytest.fail("the corpus was read"))
    words = ("train", "language-model", "--data", "pronouns", "--out", tmp_path / "run")
    assert "there is no pattern 'x'" in refusal(*words, "--attention", "x")
