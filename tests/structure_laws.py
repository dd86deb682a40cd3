"""What holds for each of the two packages; tests/regard/ and tests/regard_lab/ each run these tests for theirs."""

import ast
import inspect
from itertools import chain

from documented import defined, wrong_names
from structure import (
    ROOT,
    circles,
    drawn,
    exported,
    graph,
    modules,
    nodes,
    parsed,
    part_of,
    parts,
    wrong_imports,
)


class StructureLaws:
    """Each law collects every fault of the package before it fails."""

    package: str

    def test_imports_go_downward_only(self):
        faults = []
        for module, imported in graph(self.package).items():
            faults += wrong_imports(module, imported)
        assert not faults, "\n".join(faults)

    def test_the_drawing_shows_every_part_once(self):
        shown = sorted(chain.from_iterable(drawn(self.package)))
        assert shown == sorted(parts(self.package) - {"testing"})

    def test_no_modules_import_each_other_in_a_circle(self):
        assert circles(graph(self.package)) == []

    def test_inside_no_module_imports_from_the_package_itself(self):
        """`from regard import attention` inside of regard would make circles; the module is named instead."""
        faults = []
        for module, path in modules(self.package).items():
            if part_of(module) in (self.package, f"{self.package}.cli"):
                continue
            for node in nodes(path, ast.ImportFrom):
                if node.module == self.package:
                    names = {alias.name for alias in node.names} - parts(self.package)
                    faults += [f"{module}: from {self.package} import {name}" for name in names]
        assert not faults, "\n".join(faults)

    def test_imports_name_whole_modules(self):
        faults = []
        for name, path in modules(self.package).items():
            if any(node.level for node in nodes(path, ast.ImportFrom)):
                faults.append(name)
        assert not faults, f"these import relatively: {faults}"

    def test_every_file_has_a_docstring(self):
        files = modules(self.package).items()
        assert not [name for name, path in files if not ast.get_docstring(parsed(path))]

    def test_every_exported_name_exists_once_and_is_documented(self):
        faults = []
        for module_name, module in exported(self.package):
            names = list(module.__all__)
            for name in names:
                value = getattr(module, name)
                if names.count(name) > 1:
                    faults.append(f"{module_name}.{name} is named twice")
                kinds = (inspect.ismodule, inspect.isclass, inspect.isfunction)
                if any(is_kind(value) for is_kind in kinds) and not (value.__doc__ or "").strip():
                    faults.append(f"{module_name}.{name} has no docstring")
        assert not faults, "\n".join(faults)

    def test_a_package_opens_with_a_few_lines(self):
        for name, path in modules(self.package).items():
            if path.name == "__init__.py" and "." in name:
                docstring = ast.get_docstring(parsed(path)) or ""
                assert len(docstring.splitlines()) <= 12, name

    def test_every_documented_argument_and_field_exists(self):
        wrong = {}
        for module in modules(self.package):
            if module.endswith("__main__"):
                continue
            for name, thing in defined(module):
                missing = wrong_names(thing)
                if missing:
                    wrong[f"{module}.{name}"] = missing
        assert not wrong, f"{wrong}: mend the docstring"

    def test_every_merge_is_finished(self):
        """In text, no other test would see the marks that git leaves where a merge was not finished."""
        marks = ("<" * 7 + " ", ">" * 7 + " ")  # the line between them also underlines titles
        endings = {".py", ".md", ".h", ".cpp", ".js", ".css", ".json", ".toml", ".txt", ".yml"}
        folders = [self.package]
        if self.package == "regard":
            folders += ["docs", "tests", "benchmarks"]
        paths = list(ROOT.glob("*"))
        for folder in folders:
            paths += (ROOT / folder).rglob("*")
        for path in paths:
            if path.suffix in endings and path.is_file():
                lines = path.read_text("utf-8").splitlines()
                assert not any(line.startswith(marks) for line in lines), path
