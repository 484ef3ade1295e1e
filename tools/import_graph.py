"""The package's import graph, read from its source without importing it: modules, edges, cycles, layers.

An edge is a pair of modules, one of which imports the other: at its top, inside a function, or by
``importlib.import_module`` with the name written out. ``from package import module`` leads to the module, not to its
package. Imports for type checkers alone (``if TYPE_CHECKING``) are kept apart.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Place:
    """One thing found, where it stands."""

    module: str
    path: Path
    line: int
    text: str
    foreign: bool = False
    """It belongs to another library than this package."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass
class Module:
    """A module's source and what it defines and imports."""

    name: str
    path: Path
    tree: ast.Module
    text: list[str]
    """Its lines."""
    is_package: bool
    edges: set[str] = field(default_factory=set)
    """Modules of the package that it imports when it runs."""
    loads: set[str] = field(default_factory=set)
    """Modules that are loaded before it is: imports outside functions, and the packages above what they import."""
    typing_edges: set[str] = field(default_factory=set)
    """Modules that it imports for type checkers alone."""
    foreign: set[str] = field(default_factory=set)
    """Names bound to modules of other libraries."""
    ours: set[str] = field(default_factory=set)
    """Names bound to modules of the package."""
    attributes: set[str] = field(default_factory=set)
    """Names of methods, fields and attributes that its classes define."""
    names: set[str] = field(default_factory=set)
    """Names that it defines at its top level."""
    classes: set[str] = field(default_factory=set)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of its tree."""
        return list(ast.walk(self.tree))

    @property
    def lines(self) -> int:
        """The number of its lines."""
        return len(self.text)

    @property
    def part(self) -> str:
        """The package or module below the root that it belongs to."""
        return self.name.split(".")[1] if "." in self.name else self.name


def read(package: Path) -> dict[str, Module]:
    """The modules of a package by their full name."""
    modules = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text, filename=str(path))
        modules[name] = Module(name, path.relative_to(package.parent), tree, text.splitlines(), is_package)
    for module in modules.values():
        _imports(module, module.tree, modules, typing=False)
        _definitions(module)
    return modules


def _imports(module: Module, node: ast.AST, modules: dict[str, Module], typing: bool) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _last_name(child.test) == "TYPE_CHECKING":
            for statement in child.body:
                _imports(module, ast.Module([statement], []), modules, typing=True)
            for statement in child.orelse:
                _imports(module, ast.Module([statement], []), modules, typing)
            continue
        for target, bound in _imported(module, child, modules):
            if target in modules:
                (module.typing_edges if typing else module.edges).add(target)
                if not typing and child in module.tree.body:
                    parts = target.split(".")
                    above = {".".join(parts[:n]) for n in range(1, len(parts) + 1)} & set(modules)
                    module.loads |= {each for each in above if not f"{module.name}.".startswith(f"{each}.")}
                if bound:
                    module.ours.add(bound)
            elif bound:
                module.foreign.add(bound)
        _imports(module, child, modules, typing)


def _imported(module: Module, node: ast.AST, modules: dict[str, Module]) -> Iterator[tuple[str, str | None]]:
    """Modules that a statement imports, each with the name that it binds to a module, if any."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, alias.asname or alias.name.split(".")[0]
    elif isinstance(node, ast.ImportFrom):
        origin = source(module, node)
        for alias in node.names:
            inner = f"{origin}.{alias.name}"
            if inner in modules:
                yield inner, alias.asname or alias.name
            elif origin in modules:
                yield origin, None
            else:
                yield inner, alias.asname or alias.name
    elif isinstance(node, ast.Call) and called(node) == "import_module":
        yield from ((str(name.value), None) for name in node.args[:1] if isinstance(name, ast.Constant))


def source(module: Module, node: ast.ImportFrom) -> str:
    """The full name of what a ``from`` statement imports from."""
    if not node.level:
        return node.module or ""
    base = module.name.split(".")
    base = base[: len(base) - node.level + module.is_package]
    return ".".join([*base, *([node.module] if node.module else [])])


def _definitions(module: Module) -> None:
    for node in module.nodes:
        if isinstance(node, ast.ClassDef):
            module.classes.add(node.name)
            for inner in node.body:
                module.attributes.update(bound(inner))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and root(node) in {"self", "cls"}:
            module.attributes.add(node.attr)
    for node in module.tree.body:
        module.names.update(bound(node))


def bound(node: ast.stmt) -> Iterator[str]:
    """Names that a definition or an assignment binds; of ``__slots__`` those in it."""
    if isinstance(node, Function | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))
            if _last_name(target) == "__slots__":
                yield from (str(slot.value) for slot in ast.walk(node.value) if isinstance(slot, ast.Constant))
    elif isinstance(node, ast.If | ast.Try):
        for inner in [*node.body, *node.orelse]:
            yield from bound(inner)


def root(node: ast.expr) -> str | None:
    """The name that an expression such as ``a.b[0].c`` starts from."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def cycles(modules: dict[str, Module], *, loads: bool = False) -> list[list[str]]:
    """Sets of modules that import each other in a circle, each sorted (strongly connected components, Tarjan 1972).

    With `loads`, those that cannot be loaded but in a certain order, as a package is loaded before what is in it.
    """
    edges = {name: module.loads if loads else module.edges for name, module in modules.items()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(edges[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            circle = stack[stack.index(name) :]
            del stack[-len(circle) :]
            if len(circle) > 1 or name in edges[name]:
                found.append(sorted(circle))

    for name in modules:
        if name not in index:
            visit(name)
    return sorted(found)


def layers(pyproject: Path) -> list[list[str]]:
    """Layers from the highest to the lowest, each the modules in it, as the import linter reads them."""
    contracts = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    lines = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip() for name in line.split("|")] for line in lines]


def forbidden(modules: dict[str, Module], order: Sequence[Sequence[str]]) -> list[Place]:
    """Imports upwards or between two modules of one layer, and modules of the top level without a layer."""
    rank = {name: level for level, names in enumerate(order) for name in names}
    found = []
    for module in modules.values():
        top = module.name.split(".")[0]
        here = f"{top}.{module.part}"
        if here in {f"{top}.{top}", f"{top}.__main__"}:
            continue
        if here not in rank:
            found.append(Place(module.name, module.path, 1, f"{here} is in no layer"))
            continue
        for other in sorted(module.edges | module.typing_edges):
            there = ".".join(other.split(".")[:2])
            if there in rank and there != here and rank[there] <= rank[here]:
                found.append(Place(module.name, module.path, 1, f"imports {other}"))
    return found


def called(node: ast.Call) -> str | None:
    """The last name of what a call calls."""
    return _last_name(node.func)


def _last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None
