"""Whatever is typed wrongly ends with 2 and one sentence before any work; what is damaged or cannot be done with 1."""

import shlex

import pytest
from commanding import refusal, regard

from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.models.encoder import EncoderConfig, TextEncoder
from regard_lab.text import Tokeniser
from regard_lab.training.recipes import reading

# A command and words of its message; those after 1: end with 1. {names} are the places of the fixture below.
MISTAKES = """
shwo -> shwo
train translator -> translator
show cuasal -> at character 1: there is no pattern 'cuasal'; did you mean 'causal'?
show causal --lenght 3 -> --lenght
show causal --length 0 -> --length is 0; it has to be at least 1
show causal --png picture.jpg -> ends in .png
show causal --png {missing}/a.png -> its folder does not exist
show causal --list -> leave it out to draw 'causal'
show causal --length 8 --keys 4 --layers 2 -> a stack needs a position for every query
translate {missing} hello -> does not exist
translate {empty} hello -> {empty}
1: translate {damaged} hello -> config.json
translate {run} a b --picture x.png -> one sentence
translate {run} a --beam 1000000 -> it is a whole number from 1 to 65,536
translate {run} --input {text} --out x.txt.gz -> lines are written plain; name it x.txt
translate {run} a --count 3 -> --count is 3 and --beam 1; a beam keeps as many as its size: give --beam 3
translate {run} a --beam 2 --count 2 --map cross -> --count 2 gives several translations of a sentence, and --map
translate {run} a --min-length 9 --max-length 3 -> the longest text is 3 ids, and min_length needs 9
translate {run} a --prefix 'the street animal' --max-length 1 -> the longest text is 1 ids, and the prefix needs
translate {run} a --repetition-penalty 0.9 -> --repetition-penalty is 0.9; it has to be at least 1
translate {run} a --no-repeat 0 -> --no-repeat is 0; it has to be at least 1
translate {run} a --map corss -> --map 'corss' does not exist; did you mean 'cross'?
translate {run} a --layer 1 --head 0 -> --layer and --head need --map, such as --map cross
translate {run} a --map cross --json -> leave one of them out
translate {run} a --why es --instead ' , ' -> --instead is empty
translate {run} a b --why es --instead er -> 2 were given
translate {run} a --lens erase --place 1 -> --lens and --place belong to --why
translate {run} 'the animal' --why Zebrafink -> 'Zebrafink' is not in it
translate {run} a --why es --instead er --lens glasses -> no lens 'glasses'
evaluate {run} missing.tsv -> missing.tsv does not exist
evaluate {run} -> keeps no test split
evaluate {writer} {text} --beam 2 -> --beam is for translators
generate {run} x -> translation-transformer
generate {writer} a --beam 2 --top-k 3 -> leave out --top-k
generate {writer} a --top-k 0 -> top_k is 0; give 1 or more, or leave it out to draw from all ids
generate {writer} a --stop '' -> stops are
generate {writer} a --speculate lookup --draft {writer} -> both propose sub-words; give one of them
generate {writer} a --speculate look -> speculate is 'look'; did you mean 'lookup'?
generate {writer} a --draft {run} -> translation-transformer
generate {writer} a --cache pagd -> kind is 'pagd'; did you mean 'paged'?
classify {file} x -> {file}
classify {run} x -> translation-transformer
lenses {empty} -> {empty}
lenses {run} --sentences 2 -> regard demo
heads {missing} -> does not exist
heads {run} --measure noise -> --measure 'noise' does not exist; there are loss, bleu
heads {run} a --measure loss --why es -> leave one out
heads {run} a --instead er -> --instead belongs to --why
heads {run} a --head 9.9 -> there is no head 'self 9.9'
heads {run} a --measure noun -> without TEXT
heads {run} a --by resample -> one was given
heads {run} a --picture a.jpg -> ends in .png, .svg or .pdf
view {run} a --lens glasses -> no lens 'glasses'
train translation -> --out
train translation --out {new} -> --data is missing: name a file of sentence pairs
train translation --out {new} --data missing.tsv -> missing.tsv does not exist
train translation --out {new} --data {empty} -> {empty}
train translation --out {new} --data pronouns --valid {pairs} -> valid
train translation --out {run} --data {pairs} -> holds a saved model
@pairs --size smal -> did you mean 'small'?
@pairs --attention x -> there is no pattern 'x'; 'regard show --list' prints all
@pairs --minutes=-1 -> --minutes is -1;
@pairs --learning-rate nan -> --learning-rate is nan; it needs a finite number
@pairs --mechanism magic -> there is no mechanism 'magic'
@pairs --mechanism linear --attention sliding_window(8) -> not sliding_window(8)
@pairs --mechanism 'linformer(2, 1)' -> the longest source has
@pairs --model gpt -> model 'gpt' does not exist; there are transformer, bahdanau
@pairs --model bahdanau --heads 2 -> --heads belongs to the Transformer
@pairs --model bahdanau --gradient-checkpointing -> belongs to the Transformer
train language-model --out {new} -> --data is missing: name a file of text
1: train language-model --out {new} --data {blank} -> has no text
@text --attention diagonal -> diagonal
@text --batch-tokens 16 -> a block of text has 256 ids
train masked-words --out {new} -> --data is missing
train classifier --out {new} -> --data is missing: name a .tsv of label TAB text
train classifier --out {new} --data {text} -> labels are read from a .tsv
train classifier --out {new} --data {labels} --from x --dim 32 -> --from x decides dim
1: train classifier --out {new} --data {labels} --valid {strange} -> never teaches
compare --out {new} --data {pairs} --runs {run} -> name two or more
compare --out {new} --data {pairs} --runs {run},{writer} -> compare models of one kind
@convert --kv-heads 3 -> key/value heads cannot become 3
@convert --kv-heads 1 --method best -> there are mean, first, random, align
@convert --kv-heads 1 --uptrain-steps 5 -> --uptrain-steps needs --text
convert kv-heads {sorter} --kv-heads 1 --text {text} --out {new} -> regard train classifier --from
convert kv-heads {wordless} --kv-heads 1 --text {text} --out {new} -> has no tokeniser.json
plan -> --q-len
@plan --pattern caual -> there is no pattern 'caual'; did you mean 'causal'?
@plan --device tpu -> device 'tpu' is not supported; there are cpu, cuda
@plan --want nonsense -> want='nonsense' is no statistic
@plan --backend magic -> backend 'magic' does not exist
@plan --heads 8 --kv-heads 3 -> heads must be a multiple of kv-heads
@plan --softcap 30 --backend fused -> have no softcap
@plan --k-len 2000000000000000000 -> must be a number from 0 to
bench plane -> did you mean 'plain'?
bench complexity -> no case is called 'complexity'; there are plain
bench plain --resume --out {empty} -> {empty}
doctor now -> now
lesson causl -> did you mean 'causal'
lesson causal --list -> leave it out for lesson 'causal'
lesson --png a.png -> --png needs the name of a lesson
lesson scale --run {missing} -> lesson scale has no run
lesson causal --text '' -> 0 words
lesson causal --seed 99999999999999999999 -> at most 4294967295
walkthrough -> give a TEXT or an --example
walkthrough a b --word 9 -> put a text of several words in quotes, as in regard walkthrough "a b
@walk --word 9 -> the text has words 1 to 2
@walk --word cake -> 'cake' is not in the text
@walk --heads=129 -> --heads is 129; it has to be at most 128
@walk --example life-is-short -> not both
@walk --weights {missing} -> cannot be read as safetensors
@walk --run {missing} --causal -> leave out --causal: a run has its own
@walk --model encoder -> add --whole
@walk --whole --head 1 --causal -> leave out --causal, --head: a whole model shows all
view {run} ' ' -> the TEXT is empty
view {run} a --export page.txt -> is HTML; give it a name that ends in .html
view {run} a --instead es --place 1 -> --instead and --place belong to --why
view {writer} a --why es --instead er -> --why of a page is for translations
view {run} a --with {writer} -> cannot be compared: one translates
"""
SHORT = {
    "@pairs": "train translation --out {new} --data {pairs}",
    "@text": "train language-model --out {new} --data {text}",
    "@convert": "convert kv-heads {writer} --out {new}",
    "@plan": "plan --q-len 8",
    "@walk": "walkthrough 'a b'",
}
ROWS = [tuple(row.split(" -> ", 1)) for row in MISTAKES.strip().splitlines()]
NUMBERS = {  # what no option that counts takes
    "@plan": "--q-len --k-len --heads --head-dim --v-dim --batch --dropout",
    "@pairs": "--dim --seed --steps --heads --batch-tokens",
    "@text": "--dim --block --vocab-size",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory, run_folder, writer, data):
    folder = tmp_path_factory.mktemp("places")
    (folder / "file.xyz").write_text("neither a run nor a table\n")
    (folder / "blank.txt").write_text("\n")
    (folder / "strange.tsv").write_text("even\tthe bird number 2\nprime\tthe bird number 2 sang\n")
    (folder / "pairs.csv").write_text(
        "id,english,german\n" + "".join(f"{n},a {n},ein {n}\n" for n in range(40))
    )
    for name, file, content in (
        ("empty", None, ""),
        ("full", "diary.txt", "mine"),
        ("damaged", "config.json", "{}"),
    ):
        (folder / name).mkdir()
        if file is not None:
            (folder / name / file).write_text(content)
    tokeniser = Tokeniser.train(["the bird sang"], 300)
    sizes = {"dim": 16, "heads": 2, "layers": 1, "head": "classes", "classes": 2}
    sorter = TextEncoder(EncoderConfig(vocab_size=tokeniser.vocab_size, **sizes))
    sorter.save(folder / "sorter", {TOKENISER_FILE: tokeniser.to_json()})
    sorter.save(folder / "wordless")
    return {
        **{
            name: folder / name
            for name in ("empty", "full", "damaged", "sorter", "wordless", "new")
        },
        "missing": folder / "nowhere",
        "file": folder / "file.xyz",
        "blank": folder / "blank.txt",
        "strange": folder / "strange.tsv",
        "csv": folder / "pairs.csv",
        "run": run_folder,
        "writer": writer,
        "pairs": data / "pairs.tsv",
        "text": data / "text.txt",
        "labels": data / "labels.tsv",
    }


def words_of(command, places):
    """The words of a command; places are filled in after it is split, since folders may have spaces."""
    first, _, rest = command.partition(" ")
    return [
        word.format(**places) if "{" in word else word
        for word in shlex.split(f"{SHORT.get(first, first)} {rest}")
    ]


def fault_of(row, words, places):
    """What is wrong about the answer to a mistake."""
    code, command = (1, row[3:]) if row.startswith("1: ") else (2, row)
    answer = regard(*words_of(command, places))
    if answer.returncode != code or answer.stdout or "Traceback" in answer.err:
        return f"ends with {answer.returncode} and prints {answer.out}"
    if words.format(**places) not in " ".join(answer.err.split()):
        return answer.err
    sentences = [line for line in answer.err.splitlines() if line.startswith("regard: ")]
    if not answer.err.startswith("Usage") and sentences != [answer.last]:
        return f"more than a sentence: {answer.err}"
    return "leaves a folder" if places["new"].exists() else None


@pytest.mark.parametrize("part", range(4))
def test_a_mistake_is_one_sentence_with_its_exit_code_before_any_work(part, places, monkeypatch):
    faults = {row: fault_of(row, words, places) for row, words in ROWS[part::4]}
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


def test_groups_of_commands_alone_print_their_help():
    for words, part in (((), "Usage"), (("train",), "translation"), (("convert",), "kv-heads")):
        answer = regard(*words)
        assert (answer.returncode, part in answer.out + answer.err) == (2, True)


def test_the_corpus_of_a_training_needs_no_file_and_its_options_are_checked_first(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(reading, "make_split", lambda *_: pytest.fail("the corpus was read"))
    assert "there is no pattern 'x'" in refusal(
        "train",
        "language-model",
        "--data",
        "pronouns",
        "--out",
        tmp_path / "run",
        "--attention",
        "x",
    )
