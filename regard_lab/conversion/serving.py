"""`export_translator`: a folder that translates without regard and without torch, by CTranslate2 or onnxruntime."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from regard import __version__
from regard.arguments import a_path, count_of, one_of, yes_or_no
from regard.errors import OccupiedError, RegardError, UnsupportedError
from regard.packages import needed
from regard.storage.files import replace_file, write_folder
from regard.storage.sealed_json import check_format, read_sealed, render_sealed
from regard_lab.conversion.folders import check_apart, is_new_or_empty
from regard_lab.conversion.standalone import translating
from regard_lab.conversion.standalone.ctranslate2_engine import CTranslate2Engine
from regard_lab.conversion.standalone.onnx_engine import OnnxEngine
from regard_lab.conversion.standalone.translating import EXPORT_FILE, TOKENISER_FILE, Engine
from regard_lab.decoding import Translator, greedy_search
from regard_lab.decoding.protecting import PlaceholderCounts
from regard_lab.models import TranslationTransformer
from regard_lab.models.ctranslate import ctranslate2_spec, most_positions
from regard_lab.models.exporting import longest_text, onnx_translator
from regard_lab.text.batches import batches_in_order
from regard_lab.text.vocabularies import BEGIN, END
from regard_lab.training.recipes.run_folder import read_test, run_of

FORMAT = 1
KIND = "regard export"
TARGETS = translating.ENGINES
WEIGHTS = ("float32", "int8")
COMPARED = 200  # sentences
LONGEST_DRAWN = 24  # ids of a source that is drawn, where a run has too few test sentences
MOST_IDS = 128  # of a text that is compared
TIE = 1e-3  # nats between two ids that rounding may exchange

# The package of an exported folder, and what is copied into it: a module stands after those that it imports.
PACKAGE = "regard_text"
COPIED = (
    "regard/errors.py",
    "regard/arguments.py",
    "regard/packages.py",
    "regard_lab/text/cleaning.py",
    "regard_lab/text/placeholders.py",
    "regard_lab/text/vocabularies.py",
    "regard_lab/text/tokenisers.py",
    "regard_lab/text/source_placeholders.py",
    "regard_lab/conversion/standalone/translating.py",
)
ENGINE_MODULES = {
    "ctranslate2": "regard_lab/conversion/standalone/ctranslate2_engine.py",
    "onnx": "regard_lab/conversion/standalone/onnx_engine.py",
}
SCRIPT = "regard_lab/conversion/standalone/translate.py"
IMPORTED = re.compile(r"\bfrom regard(?:_lab\.text|_lab\.conversion\.standalone)?\.(\w+) import\b")
INSTALLED = {"ctranslate2": "'ctranslate2>=4.7' tokenizers", "onnx": "onnxruntime tokenizers"}


@dataclass(frozen=True)
class Comparison:
    """How greedy texts of an exported model compare with those of the model itself."""

    texts: int
    equal: int
    ties: int  # differ first where two ids are equally probable, except for rounding
    from_test: int  # of the texts, those of test sentences; others are drawn ids
    placeholders: int = 0  # test sentences with placeholders
    kept: int = 0  # of these, the ones whose translation has each once

    def sentence(self) -> str:
        """What was compared, in words."""
        text = f"{self.equal:,} of {count_of(self.texts, 'greedy texts', ',')} are equal"
        if self.ties:
            text += f", {self.ties:,} differ where two ids are equally probable"
        if self.placeholders:
            text += f"; {self.kept:,} of {self.placeholders:,} with placeholders have each once"
        return text


@dataclass(frozen=True)
class Exported:
    """What was written: the folder, the form of its weights, its size in bytes, and the comparisons."""

    folder: Path
    to: str
    weights: str
    size: int
    exact: Comparison  # with weights in float32
    written: Comparison  # with those that were written


def export_translator(
    run: str | Path,
    out: str | Path,
    *,
    to: str,
    weights: str = "float32",
    replace: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Exported:
    """Write a translator as a folder that runs with CTranslate2, or with onnxruntime, and its tokeniser alone.

    The folder has the model, the tokeniser, `translate.py`, and README.md, which says how to use them. Before it is
    written, 200 texts are translated by the model and by the folder: the greedy texts must be equal in float32, unless
    two ids are equally probable. The folder appears whole or not at all.

    Args:
        run: a training run or saved model with a TranslationTransformer and its tokeniser.
        out: a new or empty folder.
        to: "ctranslate2" or "onnx".
        weights: "float32", or "int8" for CTranslate2, whose texts may differ; the comparison counts them.
        replace: write over an earlier export in `out`; anything else there is refused even so.
        progress: called with the number of texts that were compared since the last call.

    Returns:
        What was written, with the comparisons.

    Raises:
        OccupiedError: `out` holds something.
        UnsupportedError: a recurrent translator, or a setting that CTranslate2 has no counterpart for.
        MissingPackageError: ctranslate2, onnx or onnxruntime is not installed.
        RegardError: the texts differ; nothing is written.
    """
    run = a_path("run", run)
    out = a_path("out", out)
    one_of("to", to, TARGETS)
    one_of("weights", weights, WEIGHTS)
    yes_or_no("replace", replace)
    if to == "onnx" and weights != "float32":
        raise UnsupportedError(
            f"weights is {weights}, and ONNX files are written in float32; leave it out, or give --to ctranslate2"
        )
    _check_out(run, out, replace)
    translator = Translator.load(run)
    if not isinstance(translator.model, TranslationTransformer):
        raise UnsupportedError(
            f"{run} holds a recurrent translator, and {to} gets Transformers; train one with --model transformer"
        )
    exporting = _Exporting(translator, run, to, weights, progress)
    write_folder(out, exporting.write, replace=replace)
    return exporting.exported(out)


class _Exporting:
    """One export: its files, and what was compared."""

    def __init__(
        self,
        translator: Translator,
        run: Path,
        to: str,
        weights: str,
        progress: Callable[[int], None] | None,
    ) -> None:
        assert isinstance(translator.model, TranslationTransformer)
        self.translator = translator
        self.model: TranslationTransformer = translator.model
        self.run = run
        self.to = to
        self.weights = weights
        self.progress = progress
        self.lines = _test_sources(run)
        self.most_positions = _most_positions(self.model, to)
        self.size = 0

    def exported(self, folder: Path) -> Exported:
        return Exported(folder, self.to, self.weights, self.size, self.exact, self.written)

    def write(self, folder: Path) -> None:
        """Write all files into a folder, compared."""
        if self.to == "ctranslate2":
            self._write_ctranslate2(folder)
        else:
            with needed("onnxruntime", "the comparison of an ONNX translator", "onnx"):
                import_module("onnxruntime")
            for name, content in onnx_translator(self.model).items():
                replace_file(folder / name, content, durable=False)
            self.exact = self.written = self._compared(OnnxEngine(folder, self.most_positions))
            self._check_exact()
        self._write_texts(folder)
        self.size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    def _write_ctranslate2(self, folder: Path) -> None:
        pieces = self.translator.tokeniser.vocabulary.pieces
        with TemporaryDirectory() as beside:
            ctranslate2_spec(self.model, pieces).save(beside)
            self.exact = self.written = self._compared(self._engine(Path(beside)))
            self._check_exact()
            if self.weights == "float32":
                shutil.copytree(beside, folder, dirs_exist_ok=True)
                return
        spec = ctranslate2_spec(self.model, pieces)
        spec.optimize(self.weights)
        spec.save(str(folder))
        self.written = self._compared(self._engine(folder))

    def _engine(self, folder: Path) -> Engine:
        return CTranslate2Engine(folder, self.translator.tokeniser, self.most_positions)

    def _check_exact(self) -> None:
        compared = self.exact
        if compared.equal + compared.ties < compared.texts:
            raise RegardError(
                f"the model was not exported: {compared.sentence()}, and in float32 all have to be; nothing was written"
            )

    def _compared(self, engine: Engine) -> Comparison:
        """Compare greedy texts of an engine with those of the model, without constraints of placeholders."""
        sources = _sources(self.translator, self.lines, self.most_positions)
        most_ids = min(MOST_IDS, self.most_positions or MOST_IDS)
        equal = 0
        ties = 0
        for indices, (batch, *_) in batches_in_order([(ids[:-1], [0]) for ids in sources], 2048):
            hypotheses = greedy_search(self.model, batch, most_ids)
            rows = [sources[index] for index in indices]
            texts = engine.search(rows, [()] * len(rows), (), beam=1, most_ids=most_ids)
            for row, hypothesis, ids in zip(rows, hypotheses, texts, strict=True):
                if tuple(ids[:most_ids]) == hypothesis.ids:
                    equal += 1
                elif self._is_tie(row, hypothesis.ids, tuple(ids)):
                    ties += 1
            if self.progress is not None:
                self.progress(len(rows))

        counts = self._placeholder_counts(engine)
        return Comparison(len(sources), equal, ties, len(self.lines), counts.texts, counts.kept)

    def _placeholder_counts(self, engine: Engine) -> PlaceholderCounts:
        if not self.translator.tokeniser.protects:
            return PlaceholderCounts()
        texts = translating.FolderTranslator(self.translator.tokeniser, engine).translate(
            self.lines
        )
        return PlaceholderCounts(list(zip(self.lines, texts, strict=True)))

    @torch.inference_mode()
    def _is_tie(self, source: Sequence[int], ours: tuple[int, ...], other: tuple[int, ...]) -> bool:
        """Whether two texts differ first in ids that are equally probable, except for rounding."""
        ours = (*ours, END)
        other = (*other, END)
        place = next(place for place in range(len(ours)) if ours[place] != other[place])
        target = torch.tensor([[BEGIN, *ours[:place]]])
        logits = self.model(torch.tensor([source]), target)[0, -1]
        return float(logits[ours[place]] - logits[other[place]]) < TIE

    def _write_texts(self, folder: Path) -> None:
        """Write everything but the model: the tokeniser, the modules that use it, README.md, and the record."""
        texts = {TOKENISER_FILE: self.translator.tokeniser.to_json()}
        texts |= copied_modules(self.to)
        texts["README.md"] = _readme(self)
        for name, text in texts.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            replace_file(path, text.encode(), durable=False)
        hashes = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                hashes[path.relative_to(folder).as_posix()] = digest
        record = {
            "kind": KIND,
            "format": FORMAT,
            "version": __version__,
            "to": self.to,
            "weights": self.weights,
            "most_positions": self.most_positions,
            "compared": self.written.sentence(),
            "files": hashes,
        }
        replace_file(folder / EXPORT_FILE, render_sealed(record), durable=False)


def copied_modules(to: str) -> dict[str, str]:
    """The modules of an exported folder, by their paths in it; their imports name each other by these paths."""
    root = Path(__file__).parents[2]
    texts = {
        f"{PACKAGE}/__init__.py": '"""Modules of regard that need neither regard nor torch."""\n'
    }
    for name in (*COPIED, ENGINE_MODULES[to]):
        texts[f"{PACKAGE}/{Path(name).name}"] = _as_copied((root / name).read_text("utf-8"))
    texts[Path(SCRIPT).name] = _as_copied((root / SCRIPT).read_text("utf-8"))
    return texts


def _as_copied(source: str) -> str:
    return IMPORTED.sub(rf"from {PACKAGE}.\1 import", source)


def _most_positions(model: TranslationTransformer, to: str) -> int | None:
    return longest_text(model.config) if to == "onnx" else most_positions(model.config)


def _test_sources(run: Path) -> list[str]:
    """The first test sentences of a run; none of a saved model, or where the split cannot be read."""
    try:
        pairs = read_test(run_of(run))
    except RegardError:
        return []
    return [pair.source for pair in pairs[:COMPARED]]


def _sources(
    translator: Translator, lines: Sequence[str], most_positions: int | None
) -> list[list[int]]:
    """The ids of the lines, each with END, and then drawn ids, `COMPARED` texts together."""
    sources = [[*translator.tokeniser.encode(line), END] for line in lines]
    vocabulary = translator.tokeniser.vocabulary
    generator = torch.Generator().manual_seed(0)
    longest = min(LONGEST_DRAWN, (most_positions or LONGEST_DRAWN + 1) - 1)
    while len(sources) < COMPARED:
        length = int(torch.randint(1, longest + 1, (), generator=generator))
        size = translator.tokeniser.vocab_size
        ids = torch.randint(vocabulary.first_ordinary, size, (length,), generator=generator)
        sources.append([*ids.tolist(), END])
    return sources


def _check_out(run: Path, out: Path, replace: bool) -> None:
    """Raise unless `out` is new or empty, or with `replace` holds an earlier export and nothing else."""
    check_apart(run, out)
    if is_new_or_empty(out):
        return
    if not replace:
        raise OccupiedError(
            f"{out} exists already; name another folder, or give --replace if it is an earlier export"
        )
    if out.is_symlink() or not (out / EXPORT_FILE).is_file():
        raise OccupiedError(f"{out} is not an earlier export; name another folder")
    record = read_sealed(out / EXPORT_FILE)
    check_format(record, FORMAT, out / EXPORT_FILE)
    files: Any = record.get("files")
    if record.get("kind") != KIND or not isinstance(files, dict):
        raise OccupiedError(f"{out} is not an earlier export; name another folder")
    known = {EXPORT_FILE, *files}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        is_ours = name in known or path.is_dir() or path.parent.name == "__pycache__"
        if not is_ours:
            raise OccupiedError(
                f"{out} holds {name} beside an earlier export; name another folder, or move it"
            )


def _readme(exporting: _Exporting) -> str:
    limit = "Texts may have any length."
    if exporting.most_positions is not None:
        limit = f"A text has at most {exporting.most_positions:,} ids; longer ones are refused."
    engine = {"ctranslate2": "CTranslate2", "onnx": "onnxruntime"}[exporting.to]
    return README.format(
        engine=engine,
        version=__version__,
        packages=INSTALLED[exporting.to],
        weights=exporting.weights,
        compared=exporting.written.sentence(),
        limit=limit,
    )


README = """\
# A translator for {engine}

Written by regard {version}. It needs neither regard nor torch:

    pip install {packages}
    python translate.py < lines.txt > translations.txt

From Python, in this folder:

    from regard_text.translating import load

    translator = load(".", threads=1)
    print(translator.translate(["A sentence."], beam=4))

Weights: {weights}. Compared with the model when it was written: {compared}. {limit}

`tokeniser.json` is the tokeniser, and `regard_text` the modules that read it: they divide a text into pieces, keep
placeholders as they are, and join the pieces of a translation. Code in `regard_text` has regard's licence, Apache-2.0.
`export.json` has a SHA-256 of every file.
"""
