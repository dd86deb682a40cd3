"""Exported folders: texts without regard and torch, placeholders, and a comparison before anything is written."""

import json
import subprocess
import sys
from io import BytesIO, TextIOWrapper

import pytest
import torch

from regard.errors import ArgumentError, CheckpointError, RegardError, UnsupportedError
from regard_lab.conversion import serving
from regard_lab.conversion.serving import copied_modules, export_translator
from regard_lab.conversion.standalone import translate
from regard_lab.conversion.standalone.translating import FolderTranslator, load
from regard_lab.decoding import Translator, greedy_search
from regard_lab.decoding.constraints import Constraints
from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.models import RecurrentTranslator, TranslationTransformer
from regard_lab.text import Tokeniser
from regard_lab.text.placeholders import differences
from regard_lab.text.source_placeholders import Once

WORDS = ["the {0} animal", "copy %s to the street", "a new street", "an old animal <b>sleeps</b>"]
LINES = [
    "copy %s to {0}",
    "a new street",
    "",
    "🎉",
    "the <b>animal</b> sleeps at 12:30 in {1}",
    "%s %s {} <i>x</i> ${HOME} www.example.org",
    "5 % of the animal",
    "żaba {0}",
]

COMPARED = 11


class TorchEngine:
    """Searches by the model itself, as an engine does: with prefixes and banned ids alone."""

    def __init__(self, model, most_positions=None, change=None):
        self.model = model
        self.most_positions = most_positions
        self.change = change
        self.asked = []

    def search(self, sources, prefixes, banned, *, beam, most_ids):
        written = []
        for source, prefix in zip(sources, prefixes, strict=True):
            self.asked.append((tuple(prefix), tuple(banned)))
            constraints = Constraints(
                prefixes=(tuple(prefix),), once=(Once((), banned=tuple(banned)),)
            )
            (hypothesis,) = greedy_search(
                self.model, torch.tensor([source]), most_ids, constraints=constraints
            )
            ids = list(hypothesis.ids)
            written.append(ids if self.change is None else self.change(ids))
        return written


def new_translator(protect=True, seed=3, **settings):
    tokeniser = Tokeniser.train(WORDS * 2, 400, targets=WORDS, protect=protect)
    torch.manual_seed(seed)
    sizes = {"vocab_size": tokeniser.vocab_size, "dim": 16, "heads": 2}
    return Translator(
        TranslationTransformer(TranslationTransformer.Config(**sizes, **settings)), tokeniser
    )


def saved(folder, **settings):
    translator = new_translator(**settings)
    translator.model.save(folder, {TOKENISER_FILE: translator.tokeniser.to_json()})
    return folder


@pytest.fixture
def engines(monkeypatch):
    """Without CTranslate2: its model is a file, and the torch model searches. `engines.change` changes the texts."""

    class Engines:
        change = None
        model = None

    class Spec:
        weights = "float32"

        def optimize(self, weights):
            self.weights = weights

        def save(self, folder):
            (serving.Path(folder) / "model.bin").write_text(self.weights)

    def spec_of(model, pieces):
        Engines.model = model
        return Spec()

    def engine_of(folder, tokeniser, most_positions, threads=1):
        weights = (folder / "model.bin").read_text()
        change = Engines.change if weights == "int8" or Engines.change_exact else None
        return TorchEngine(Engines.model, most_positions, change)

    Engines.change_exact = False
    monkeypatch.setattr(serving, "COMPARED", COMPARED)
    monkeypatch.setattr(serving, "MOST_IDS", 13)
    monkeypatch.setattr(serving, "ctranslate2_spec", spec_of)
    monkeypatch.setattr(serving, "CTranslate2Engine", engine_of)
    return Engines


@pytest.mark.parametrize("seed", range(3))
def test_an_engine_with_prefixes_alone_keeps_every_placeholder_once(seed):
    translator = new_translator(seed=seed)
    engine = TorchEngine(translator.model)
    texts = FolderTranslator(translator.tokeniser, engine).translate(LINES)
    originals = [translator.tokeniser.originals(line) for line in LINES]
    for line, text, of_line in zip(LINES, texts, originals, strict=True):
        assert all(text.count(original) >= 1 for original in of_line.values()), (line, text)
    assert texts[2:4] == ["", "🎉"]
    assert not differences(LINES[0], texts[0])


def test_texts_are_those_of_the_translator_where_no_placeholder_is_missing():
    translator = new_translator(protect=False)
    texts = FolderTranslator(translator.tokeniser, TorchEngine(translator.model)).translate(LINES)
    assert texts == [translation.text for translation in translator.translate(LINES)]


def test_a_search_goes_on_behind_each_placeholder_with_those_that_are_left():
    translator = new_translator()
    engine = TorchEngine(translator.model)
    FolderTranslator(translator.tokeniser, engine).translate(["copy %s to {0}"])
    vocabulary = translator.tokeniser.vocabulary
    first, second = vocabulary.reserved_ids["variable"][:2]
    assert len(engine.asked) > 1
    for prefix, banned in engine.asked:
        assert {first, second} & set(banned) == {first, second} & set(prefix)
        assert set(vocabulary.reserved_ids["tag"]) < set(banned)


def test_a_text_beyond_the_positions_is_refused_and_not_cut():
    translator = new_translator()
    standalone = FolderTranslator(
        translator.tokeniser, TorchEngine(translator.model, most_positions=5)
    )
    with pytest.raises(ArgumentError, match="has positions for 5"):
        standalone.translate(["a new street and a new street and an old street"])


def test_a_folder_translates_without_regard_and_torch(tmp_path):
    tokeniser = new_translator().tokeniser
    for name, text in copied_modules("ctranslate2").items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tmp_path / "tokeniser.json").write_text(tokeniser.to_json())
    program = """
import json, sys
sys.path.insert(0, sys.argv[1])
for name in ("regard", "regard_lab", "torch"):
    sys.modules[name] = None
from regard_text.tokenisers import Tokeniser
from regard_text.source_placeholders import SourcePlaceholders
from regard_text import translating, ctranslate2_engine
tokeniser = Tokeniser.from_json(open(sys.argv[1] + "/tokeniser.json").read())
lines = json.load(sys.stdin)
print(json.dumps([[tokeniser.encode(line), SourcePlaceholders.of(tokeniser, line).once.ids] for line in lines]))
"""
    command = [sys.executable, "-I", "-c", program, str(tmp_path)]
    answer = subprocess.run(command, input=json.dumps(LINES), capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    ids = [
        [
            tokeniser.encode(line),
            list(serving.translating.SourcePlaceholders.of(tokeniser, line).once.ids),
        ]
        for line in LINES
    ]
    assert json.loads(answer.stdout) == ids
    imports = [text for text in copied_modules("onnx").values() if "import regard." in text]
    assert not imports
    assert "from regard." not in "".join(copied_modules("onnx").values())


def test_an_export_counts_its_texts_and_replaces_an_earlier_one_only_if_asked(engines, tmp_path):
    run = saved(tmp_path / "run")
    progress = []
    out = tmp_path / "out"
    done = export_translator(run, out, to="ctranslate2", progress=progress.append)
    assert (done.exact.texts, done.exact.equal, done.exact.from_test) == (COMPARED, COMPARED, 0)
    assert sum(progress) == COMPARED
    assert done.size > 0
    with pytest.raises(CheckpointError, match="exists already"):
        export_translator(run, out, to="ctranslate2")

    engines.change = lambda ids: [*ids[:-1], 7]
    again = export_translator(run, out, to="ctranslate2", weights="int8", replace=True)
    assert (again.exact.equal, again.written.equal) == (COMPARED, 0)
    assert (out / "model.bin").read_text() == "int8"
    (out / "mine.txt").write_text("kept")
    with pytest.raises(CheckpointError, match=r"holds mine\.txt beside"):
        export_translator(run, out, to="ctranslate2", replace=True)
    assert (out / "mine.txt").read_text() == "kept"


def test_texts_that_differ_in_float32_are_not_exported(engines, tmp_path):
    run = saved(tmp_path / "run")
    engines.change_exact = True
    engines.change = lambda ids: [*ids[:-1], 7]
    with pytest.raises(RegardError, match="nothing was written"):
        export_translator(run, tmp_path / "out", to="ctranslate2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_an_interrupted_export_leaves_nothing_but_an_earlier_one(engines, tmp_path):
    run = saved(tmp_path / "run")
    out = tmp_path / "out"

    def interrupt(done):
        raise KeyboardInterrupt

    def export_interrupted():
        with pytest.raises(KeyboardInterrupt):
            export_translator(run, out, to="ctranslate2", replace=True, progress=interrupt)

    export_interrupted()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    export_translator(run, out, to="ctranslate2")
    earlier = {path: path.read_bytes() for path in out.rglob("*.*")}
    export_interrupted()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]
    assert {path: path.read_bytes() for path in out.rglob("*.*")} == earlier


def test_what_cannot_be_exported_is_refused(tmp_path):
    run = saved(tmp_path / "run", encoder_pattern="sliding_window(4)")
    with pytest.raises(UnsupportedError, match="sliding_window"):
        export_translator(run, tmp_path / "out", to="ctranslate2")
    tokeniser = Tokeniser.train(WORDS * 2, 300)
    config = RecurrentTranslator.Config(vocab_size=tokeniser.vocab_size, dim=8, hidden=8)
    folder = tmp_path / "recurrent"
    RecurrentTranslator(config).save(folder, {TOKENISER_FILE: tokeniser.to_json()})
    with pytest.raises(UnsupportedError, match="recurrent"):
        export_translator(folder, tmp_path / "out", to="onnx")
    with pytest.raises(CheckpointError, match="contain each other"):
        export_translator(run, run / "out", to="ctranslate2")
    assert not (tmp_path / "out").exists()
    assert not (run / "out").exists()


def test_a_changed_file_of_a_folder_is_found(engines, tmp_path):
    out = tmp_path / "out"
    export_translator(saved(tmp_path / "run"), out, to="ctranslate2")
    (out / "model.bin").write_text("float33")
    with pytest.raises(CheckpointError, match=r"model\.bin is missing, or does not match"):
        load(out)
    (out / "export.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(out)
    with pytest.raises(ArgumentError, match=r"has no export\.json"):
        load(tmp_path)


def test_a_file_that_may_not_be_read_ends_the_script_with_a_sentence(monkeypatch, capsys):
    def unreadable(folder, threads):
        raise PermissionError(13, "Permission denied", "model.bin")

    monkeypatch.setattr(translate, "load", unreadable)
    monkeypatch.setattr(sys, "argv", ["translate.py"])
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"a new street")))
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(BytesIO()))
    assert translate.main() == 1
    assert capsys.readouterr().err == "[Errno 13] Permission denied: 'model.bin'\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "package"), [("ctranslate2", "ctranslate2"), ("onnx", "onnxruntime")]
)
def test_the_folder_writes_the_texts_of_the_model(to, package, tmp_path):
    pytest.importorskip(package, reason=f"needs pip install 'regard[{to}]'")
    run = saved(tmp_path / "run", protect=False, positions="rotary")
    export_translator(run, tmp_path / "out", to=to)
    script = [sys.executable, str(tmp_path / "out" / "translate.py")]
    answer = subprocess.run(script, input="\n".join(LINES), capture_output=True, text=True)
    texts = [translation.text for translation in Translator.load(run).translate(LINES)]
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split("\n")[:-1] == [" ".join(text.splitlines()) for text in texts]
