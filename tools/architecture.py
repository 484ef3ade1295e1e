"""Figures of the package's architecture, read from its source without importing it.

``python tools/architecture.py`` prints them, ``--check`` exits with 1 and one line for each limit that is broken,
``--list private|hasattr|any|cycles|layers|long|sole|same`` says where.

What is counted:

edges
    Imports as import_graph.py says, those inside functions included, those for type checkers alone not.
cycles
    Sets of modules each of which reaches every other one along edges; where there are none, those that can be loaded in
    a certain order alone, as a package is loaded before what is in it.
imports against the layers
    Imports that the layers of pyproject.toml forbid, those for type checkers included; and modules of the top level
    that no layer names.
private accesses
    ``x._name``, ``getattr(x, "_name")`` and ``from module import _name``, unless x is ``self``, ``cls``, ``super()``
    or a class of the same module, or a class of the same module defines ``_name``. Names of the form ``__name__`` do
    not count, nor those that Python's and torch's documentation gives to users (``_DOCUMENTED``). Those whose name the
    package defines nowhere, or that are looked up in a module of another library, count too and are listed as other
    libraries'.
capability checks
    ``hasattr(x, name)`` and ``getattr(x, name, default)``: questions to an object about what it can do. They do not
    count where x is a module or the answer is for a ``__del__``, whose object may be half made, and not where the name
    is a literal that no class of the package defines, for then x is an object of another library. Where such a name
    happens to exist here too, a comment ``# foreign: what x is`` on the line says so; those are listed apart.
modules with one importer
    Modules that one other module imports, of the same package; commands of ``cli`` and plug-ins are such by nature.
fmt: skip
    Lines that the formatter leaves alone.
duplicate class names
    Names of classes that more than one module defines.
lines
    Of all modules, at most 1 % more than the latest line ``- Source: N lines`` of CHANGELOG.md says: who adds more
    says there what for.
Any
    Annotations of arguments, of results and of variables in which the name ``Any``, or a name that is assigned
    ``Any`` alone or a mapping to it, occurs anywhere.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from import_graph import Function, Module, Place, bound, called, cycles, forbidden, layers, read, root, source

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "mileage"

MAX_CYCLES = 0
MAX_FORBIDDEN_IMPORTS = 0
MAX_PRIVATE = 20
MAX_CAPABILITY = 0
MAX_ANY_SHARE = 0.077
MAX_LINES = 500
MIN_MEAN_LINES = 190
MAX_SOLE = 60
MAX_SKIPS = 287
MAX_SAME_NAMES = 15
MAX_GROWTH = 0.01

# Compiled functions take pointers and records that Python's types cannot say, so these count apart.
UNTYPED = "kernels"

_QUESTIONS = {("hasattr", 2), ("getattr", 3)}
_FOREIGN = "# foreign: "
# Names with an underscore that Python's documentation tells users to use.
_DOCUMENTED = re.compile(r"_replace|_asdict|_fields|_make|_field_defaults|_exit|_current_frames")


# --- what one object asks of another ------------------------------------------------------------------------------


def private_accesses(modules: dict[str, Module]) -> list[Place]:
    """Every use of a private name of another object or module."""
    defined: set[str] = set().union(*(module.attributes | module.names for module in modules.values()))
    found = []
    for module in modules.values():
        for node in module.nodes:
            for name, value in _private(module, node, modules):
                if value is not None and (name in module.attributes or _is_own(value, module)):
                    continue
                other = name not in defined or (value is not None and root(value) in module.foreign - module.ours)
                found.append(_place(module, node, other))
    return found


def attribute_accesses(modules: dict[str, Module]) -> int:
    """The number of private attributes of anything but ``self`` and ``cls``, those within one module included."""
    return sum(
        isinstance(node, ast.Attribute)
        and _is_private(node.attr)
        and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})
        for module in modules.values()
        for node in module.nodes
    )


def _private(module: Module, node: ast.AST, modules: dict[str, Module]) -> Iterator[tuple[str, ast.expr | None]]:
    """Private names that an expression or an import reaches for, each with the object it belongs to."""
    if isinstance(node, ast.Attribute) and _is_private(node.attr):
        yield node.attr, node.value
    elif isinstance(node, ast.Call) and called(node) in {"getattr", "setattr", "hasattr", "delattr"}:
        name = _literal(node, 1)
        if name is not None and _is_private(name):
            yield name, node.args[0]
    elif isinstance(node, ast.ImportFrom):
        origin = source(module, node)
        for alias in node.names:
            if _is_private(alias.name) and f"{origin}.{alias.name}" not in modules:
                yield f"{alias.name} of {origin}" if origin not in modules else alias.name, None


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_" and not _DOCUMENTED.fullmatch(name)


def _is_own(value: ast.expr, module: Module) -> bool:
    if isinstance(value, ast.Call):
        return ast.unparse(value) in {"super()", "type(self)"}
    return isinstance(value, ast.Name) and (value.id in {"self", "cls"} or value.id in module.classes)


def capability_checks(modules: dict[str, Module]) -> list[Place]:
    """Every question to an object whether it has an attribute."""
    defined: set[str] = set().union(*(module.attributes for module in modules.values()))
    found = []
    for module in modules.values():
        for node in module.nodes:
            if not isinstance(node, ast.Call) or (called(node), len(node.args)) not in _QUESTIONS:
                continue
            is_module = ast.unparse(node.args[0]).split(".")[0] in module.foreign | module.ours
            name = _literal(node, 1)
            if not is_module and (name is None or name in defined) and node not in _in_del(module):
                found.append(_place(module, node, _FOREIGN in module.text[node.lineno - 1]))
    return found


def _in_del(module: Module) -> set[ast.AST]:
    """Every node of a method that may meet an object half made."""
    methods = (node for node in module.nodes if isinstance(node, Function) and node.name == "__del__")
    return {inner for method in methods for inner in ast.walk(method)}


def _literal(node: ast.Call, position: int) -> str | None:
    if len(node.args) > position and isinstance(argument := node.args[position], ast.Constant):
        return argument.value if isinstance(argument.value, str) else None
    return None


def _place(module: Module, node: ast.AST, foreign: bool = False) -> Place:
    return Place(module.name, module.path, getattr(node, "lineno", 1), ast.unparse(node), foreign)


# --- annotations --------------------------------------------------------------------------------------------------


def annotation_slots(modules: dict[str, Module]) -> tuple[Counter[str], list[Place]]:
    """The number of annotations by part of the package, and those in which ``Any`` occurs."""
    aliases = {"Any"} | {
        name for module in modules.values() for node in module.tree.body if _is_any(node) for name in bound(node)
    }
    count: Counter[str] = Counter()
    found = []
    for module in modules.values():
        for node in module.nodes:
            for what, annotation in _slots(node):
                count[module.part] += 1
                if aliases & set(_names(annotation)):
                    text = f"{what}: {ast.unparse(annotation)}"
                    found.append(Place(module.name, module.path, annotation.lineno, text))
    return count, found


def _is_any(node: ast.stmt) -> bool:
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    return value is not None and ast.unparse(value) in {"Any", "typing.Any", "dict[str, Any]", "Mapping[str, Any]"}


def _slots(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, Function):
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        for argument in every:
            if argument is not None and argument.annotation is not None:
                yield f"{node.name}({argument.arg})", argument.annotation
        if node.returns is not None:
            yield f"{node.name}()", node.returns
    elif isinstance(node, ast.AnnAssign):
        yield ast.unparse(node.target), node.annotation


def _names(annotation: ast.expr) -> Iterator[str]:
    """Names in an annotation, those in quotes included; not the values of a ``Literal`` nor what ``Annotated`` adds."""
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name):
        if annotation.value.id == "Literal":
            return
        if annotation.value.id == "Annotated" and isinstance(annotation.slice, ast.Tuple):
            yield from _names(annotation.slice.elts[0])
            return
    if isinstance(annotation, ast.Name):
        yield annotation.id
    elif isinstance(annotation, ast.Attribute):
        yield annotation.attr
    elif isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        yield from _names(ast.parse(annotation.value, mode="eval").body)
    for child in ast.iter_child_nodes(annotation):
        if isinstance(child, ast.expr):
            yield from _names(child)


# --- the report ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """All that is counted of one package."""

    modules: dict[str, Module]
    cycles: list[list[str]]
    layers: list[Place]
    private: list[Place]
    hasattr: list[Place]
    annotations: Counter[str]
    any: list[Place]
    declared: int | None
    """Lines that the changelog says."""

    @classmethod
    def of(cls, package: Path, pyproject: Path | None = None) -> Figures:
        """The figures of a package; without a pyproject.toml those of its layers are empty."""
        modules = read(package)
        against = forbidden(modules, layers(pyproject)) if pyproject else []
        count, found = annotation_slots(modules)
        private, asked = private_accesses(modules), capability_checks(modules)
        circles = cycles(modules) or cycles(modules, loads=True)
        return cls(modules, circles, against, private, asked, count, found, declared_lines(pyproject))

    @property
    def long(self) -> list[Module]:
        """Modules with more lines than one may have."""
        return [module for module in self.modules.values() if module.lines > MAX_LINES]

    @property
    def lines(self) -> int:
        """Lines of all modules."""
        return sum(module.lines for module in self.modules.values())

    @property
    def sole(self) -> list[Module]:
        """Modules that one other of their package imports and nobody else."""
        importers = {
            module.name: [other.part for other in self.modules.values() if module.name in other.edges]
            for module in self.modules.values()
        }
        return [module for module in self.modules.values() if importers[module.name] == [module.part]]

    @property
    def skips(self) -> int:
        """Lines that the formatter is told to leave alone."""
        return sum("# fmt: skip" in line for module in self.modules.values() for line in module.text)

    @property
    def same_names(self) -> dict[str, list[str]]:
        """Modules by the name of a public class that several of them define."""
        found: dict[str, list[str]] = {}
        for module in self.modules.values():
            for node in module.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, []).append(module.name)
        return {name: where for name, where in sorted(found.items()) if len(where) > 1}

    def any_share(self, *, kernels: bool) -> tuple[int, int]:
        """Annotations with ``Any`` and all annotations, of the kernels or of everything else."""
        parts = {module.name: module.part for module in self.modules.values()}
        with_any = sum((parts[place.module] == UNTYPED) == kernels for place in self.any)
        return with_any, sum(n for part, n in self.annotations.items() if (part == UNTYPED) == kernels)

    def broken(self) -> list[str]:
        """One sentence for each limit that does not hold."""
        with_any, total = self.any_share(kernels=False)
        rules = [
            (len(self.cycles), MAX_CYCLES, "cycles of imports, those inside functions included"),
            (len(self.layers), MAX_FORBIDDEN_IMPORTS, "imports against the layers"),
            (len(self.private), MAX_PRIVATE, "accesses to private names of other objects"),
            (len(_ours(self.hasattr)), MAX_CAPABILITY, "capability checks by hasattr or getattr"),
            (len(self.long), 0, f"modules of more than {MAX_LINES} lines"),
            (len(self.sole), MAX_SOLE, "modules with one importer, of the same package"),
            (self.skips, MAX_SKIPS, "lines with # fmt: skip"),
            (len(self.same_names), MAX_SAME_NAMES, "duplicate class names"),
        ]
        sentences = [f"{what}: {value}, at most {limit}" for value, limit, what in rules if value > limit]
        if with_any > MAX_ANY_SHARE * total:
            share = f"{with_any} of {total} = {with_any / total:.1%}, at most {MAX_ANY_SHARE:.1%}"
            sentences.append(f"annotations with Any outside {UNTYPED}: {share}")
        if self.declared is not None:
            most = int(self.declared * (1 + MAX_GROWTH))
            if self.lines > most:
                sentences.append(f"lines: {self.lines:,}, at most {most:,} until CHANGELOG.md says more, and what for")
            mean = self.lines / len(self.modules)
            if mean < MIN_MEAN_LINES:
                sentences.append(f"lines of a module in the mean: {mean:.0f}, at least {MIN_MEAN_LINES}")
        return sentences

    def summary(self) -> str:
        """All figures, one per line."""
        edges = sum(len(module.edges) for module in self.modules.values())
        lines = sorted(module.lines for module in self.modules.values())
        theirs, asked = len(self.private) - len(_ours(self.private)), _ours(self.hasattr)
        with_any, total = self.any_share(kernels=False)
        kernels_any, kernels = self.any_share(kernels=True)
        rows = [
            ("modules", f"{len(lines)}", ""),
            (
                "lines",
                f"{self.lines:,}",
                f"mean {self.lines / len(lines):.0f}, median {lines[len(lines) // 2]}, longest {lines[-1]}",
            ),
            (f"modules of more than {MAX_LINES} lines", f"{len(self.long)}", ""),
            ("modules with one importer", f"{len(self.sole)}", "of the same package"),
            ("duplicate class names", f"{len(self.same_names)}", ""),
            ("lines with # fmt: skip", f"{self.skips}", ""),
            ("edges", f"{edges}", "imports inside functions included"),
            ("cycles", f"{len(self.cycles)}", ", ".join(f"{len(circle)} modules" for circle in self.cycles)),
            ("imports against the layers", f"{len(self.layers)}", ""),
            ("private accesses", f"{len(self.private)}", f"{theirs} of them to other libraries"),
            ("  within a module too", f"{attribute_accesses(self.modules)}", "attributes of anything but self and cls"),
            (
                "capability checks",
                f"{len(asked)}",
                f"and {len(self.hasattr) - len(asked)} of objects of other libraries",
            ),
            (f"Any outside {UNTYPED}", f"{with_any / max(total, 1):.1%}", f"{with_any} of {total:,} annotations"),
            (f"Any in {UNTYPED}", f"{kernels_any / max(kernels, 1):.1%}", f"{kernels_any} of {kernels:,} annotations"),
        ]
        table = [f"{name:<32} {value:>8}  {note}".rstrip() for name, value, note in rows]
        return "\n".join([*table, "", *self.by_package()])

    def by_package(self) -> Iterator[str]:
        """Modules and lines of each package, the longest first."""
        number = Counter(module.part for module in self.modules.values())
        packages = {module.part for module in self.modules.values() if module.is_package}
        lines: Counter[str] = Counter()
        alone: Counter[str] = Counter()
        for module in self.modules.values():
            (lines if module.part in packages and "." in module.name else alone)[module.part] += module.lines
        for part, size in lines.most_common():
            yield f"{part:<32} {size:>8,}  {number[part]} modules"
        yield f"{'modules that stand alone':<32} {alone.total():>8,}  {len(alone)} modules"

    def listing(self, what: str) -> str:
        """Where the things of one kind stand, and how many there are in each part of the package."""
        if what == "cycles":
            return "\n".join(
                "\n".join([f"{len(circle)} modules", *_circle(circle, self.modules)]) for circle in self.cycles
            )
        if what in {"long", "sole"}:
            modules = self.long if what == "long" else self.sole
            return "\n".join(f"{module.path}: {module.lines} lines" for module in modules)
        if what == "same":
            return "\n".join(f"{name}: {', '.join(where)}" for name, where in self.same_names.items())
        places: list[Place] = getattr(self, what)
        if what == "any":
            places = [place for place in places if self.modules[place.module].part != UNTYPED]
        parts = Counter(self.modules[place.module].part for place in places)
        counts = [f"{number:>6} {part}" for part, number in parts.most_common()]
        lines = [str(place) for place in _ours(places)]
        theirs = [str(place) for place in places if place.foreign]
        return "\n".join([*lines, *(["", "of other libraries:", *theirs] if theirs else []), "", *counts])


def declared_lines(pyproject: Path | None) -> int | None:
    """The size of the source as the changelog beside a pyproject.toml says it last."""
    changelog = pyproject.with_name("CHANGELOG.md") if pyproject else None
    if changelog is None or not changelog.exists():
        return None
    found = re.search(r"^- Source: ([\d,]+) lines", changelog.read_text(), re.MULTILINE)
    return int(found[1].replace(",", "")) if found else None


def _ours(places: list[Place]) -> list[Place]:
    return [place for place in places if not place.foreign]


def _circle(circle: list[str], modules: dict[str, Module]) -> Iterator[str]:
    for name in circle:
        yield f"  {name} imports {', '.join(sorted(modules[name].edges & set(circle)))}"


def main(arguments: Sequence[str] | None = None, write: Callable[[str], object] = print) -> int:
    """Prints what was asked for; 1 if a limit was to be checked and is broken."""
    parser = argparse.ArgumentParser(description="Figures of the package's architecture.")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is broken")
    parser.add_argument("--list", choices=["private", "hasattr", "any", "cycles", "layers", "long", "sole", "same"])
    parser.add_argument("--package", type=Path, default=PACKAGE, help="the folder of the package")
    options = parser.parse_args(arguments)
    pyproject = options.package.resolve().parent.parent / "pyproject.toml"
    figures = Figures.of(options.package.resolve(), pyproject if pyproject.exists() else None)
    write(figures.listing(options.list) if options.list else figures.summary())
    broken = figures.broken() if options.check else []
    for sentence in broken:
        write(sentence)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
