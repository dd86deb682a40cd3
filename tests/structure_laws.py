"""What holds for each of the two packages; tests/regard/ and tests/regard_lab/ each run these tests for theirs."""

import ast
import inspect

from documented import defined, wrong_names
from structure import (
    ROOT,
    circles,
    drawn,
    exported,
    graph,
    modules,
    parsed,
    parts,
    wrong_imports,
)


class StructureLaws:
    """Each law collects every fault of the package before it fails."""

    package: str

    def test_imports_go_downward_only(self):
        faults = [
            fault
            for module, imported in graph(self.package).items()
            for fault in wrong_imports(module, imported)
        ]
        assert not faults, "\n".join(faults)

    def test_the_drawing_shows_every_part_once(self):
        shown = [name for names in drawn(self.package) for name in names]
        assert sorted(shown) == sorted(parts(self.package) - {"testing"})

    def test_no_modules_import_each_other_in_a_circle(self):
        assert circles(graph(self.package)) == []

    def test_inside_no_module_imports_from_the_package_itself(self):
        """`from regard import attention` inside of regard would make circles; the module is named instead."""
        top = f"{self.package}.__init__", self.package, f"{self.package}.cli"
        faults = [
            f"{module}: from {self.package} import {alias.name}"
            for module, path in modules(self.package).items()
            if not module.startswith(top[1:])
            for node in ast.walk(parsed(path))
            if isinstance(node, ast.ImportFrom) and node.module == self.package
            for alias in node.names
            if alias.name not in parts(self.package)
        ]
        assert not faults, "\n".join(faults)

    def test_imports_name_whole_modules(self):
        faults = [
            name
            for name, path in modules(self.package).items()
            if any(
                isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(parsed(path))
            )
        ]
        assert not faults, f"these import relatively: {faults}"

    def test_every_file_has_a_docstring(self):
        files = modules(self.package).items()
        assert not [name for name, path in files if not ast.get_docstring(parsed(path))]

    def test_every_exported_name_exists_once_and_is_documented(self):
        faults = []
        for name, module in exported(self.package):
            names = list(module.__all__)
            faults += [f"{name}.{one} is named twice" for one in set(names) if names.count(one) > 1]
            for one in names:
                value = getattr(module, one)
                kinds = (inspect.ismodule, inspect.isclass, inspect.isfunction)
                if any(is_kind(value) for is_kind in kinds) and not (value.__doc__ or "").strip():
                    faults.append(f"{name}.{one} has no docstring")
        assert not faults, "\n".join(faults)

    def test_a_package_opens_with_a_few_lines(self):
        texts = {
            name: ast.get_docstring(parsed(path)) or ""
            for name, path in modules(self.package).items()
        }
        packages = [
            name
            for name, path in modules(self.package).items()
            if path.name == "__init__.py" and "." in name
        ]
        assert not [name for name in packages if len(texts[name].splitlines()) > 12]

    def test_every_documented_argument_and_field_exists(self):
        names = [name for name in modules(self.package) if not name.endswith("__main__")]
        wrong = {
            f"{module}.{name}": missing
            for module in names
            for name, thing in defined(module)
            if (missing := wrong_names(thing))
        }
        assert not wrong, f"{wrong}: mend the docstring"

    def test_every_merge_is_finished(self):
        """In text, no other test would see the marks that git leaves where a merge was not finished."""
        marks = ("<" * 7 + " ", ">" * 7 + " ")  # the line between them also underlines titles
        endings = {".py", ".md", ".h", ".cpp", ".js", ".css", ".json", ".toml", ".txt", ".yml"}
        places = (
            (self.package, "docs", "tests", "benchmarks")
            if self.package == "regard"
            else (self.package,)
        )
        files = [*ROOT.glob("*"), *(path for place in places for path in (ROOT / place).rglob("*"))]
        texts = {
            path: path.read_text("utf-8")
            for path in files
            if path.suffix in endings and path.is_file()
        }
        assert not [
            path
            for path, text in texts.items()
            if any(line.startswith(marks) for line in text.splitlines())
        ]
