"""The code that the documentation shows runs: every page's Python blocks, and the examples in docstrings."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
# These pages run where what they are about is tested.
ELSEWHERE = {
    "docs/envs.md": "tests/envs/test_guide.py",
    "docs/mujoco.md": "tests/envs/gymnasium/test_pixels.py",
    "docs/torch.md": "tests/policies/test_torch_policies.py",
    "docs/migrating-from-sb3.md": "tests/policies/test_torch_policies.py",
}
# What a page says is the reader's own, so that the rest of it can run.
GIVEN = {
    "docs/ledger.md": """
def play(seeds):
    return [500.0] * len(seeds), [500] * len(seeds)

step = 0
open("policy.safetensors", "wb").close()
""",
    "docs/rl-bench.md": """
source, right, model = "fn double() { 2 }", "fn double() { 1 + 1 }", None

def GRPOTrainer(model, reward_funcs):
    return reward_funcs
""",
}


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def pages() -> list[str]:
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(page.relative_to(ROOT)) for page in found if python_blocks(page)]


@pytest.fixture
def project(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """What docs/rl-bench.md builds."""
    if request.node.callspec.params["page"] != "docs/rl-bench.md":
        return
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    (tmp_path / "path/to/project/src").mkdir(parents=True)
    (tmp_path / "path/to/project/src/lib.rs").write_text("fn double() {}")
    (tmp_path / "path/to/project/src/part.c").write_text("int part(void) { return 1; }\n")
    makefile = "app: src/lib.rs\n\tcp src/lib.rs app\ntest: app\n\tgrep -q double app\n"
    (tmp_path / "path/to/project/Makefile").write_text(makefile)
    (tmp_path / "path/to/project/tests").mkdir()
    (tmp_path / "path/to/project/tests/some.sh").write_text("grep -q double app\n")
    (tmp_path / "hidden/tests").mkdir(parents=True)
    (tmp_path / "hidden/tests/more.sh").write_text("grep -q double app\n")


@pytest.mark.parametrize("page", sorted(set(pages()) - set(ELSEWHERE)))
@pytest.mark.usefixtures("project")
def test_python_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILEAGE_DB", str(tmp_path / "ledger.db"))
    blocks = python_blocks(ROOT / page)
    code = [block for block in blocks if ">>>" not in block]
    # A module like any other: compiled environments are kept under the name of the module they come from.
    name = "page_" + Path(page).stem.lower().replace("-", "_")
    file = tmp_path / f"{name}.py"
    file.write_text("\n\n".join([GIVEN.get(page, ""), *code]))
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    for number, block in enumerate(blocks):
        if ">>>" in block:
            run_doctest(doctest.DocTestParser().get_doctest(block, {}, f"{page}, block {number}", page, 0))


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_the_other_pages_run_where_it_is_said(page: str, test: str) -> None:
    assert page in pages()
    assert Path(page).name in (ROOT / test).read_text()


def modules_with_examples() -> list[str]:
    found = [path for path in sorted(SOURCE.rglob("*.py")) if re.search(r"^\s*>>> ", path.read_text(), re.MULTILINE)]
    return [".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in found]


@pytest.mark.parametrize("name", modules_with_examples())
def test_docstring_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    examples = [found for found in doctest.DocTestFinder().find(module) if found.examples]
    assert examples
    for example in examples:
        run_doctest(example)


def run_doctest(test: doctest.DocTest) -> None:
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert not said, "".join(said)


# What the documentation teaches to import: packages that say in `__all__` what is theirs, some modules, and the parts
# of code RL that need torch.
NEED_TORCH = {"mileage.coderl.grpo"}
PUBLIC = {
    "mileage",
    "mileage.profiling.bench",
    "mileage.buffers",
    "mileage.coderl",
    "mileage.coderl.kpi",
    "mileage.contracts",
    "mileage.external.adapters",
    "mileage.envs",
    "mileage.external.exam",
    "mileage.measure",
    "mileage.measure.timing",
    "mileage.kernels",
    "mileage.ledger",
    "mileage.profiling",
    "mileage.tables",
    *NEED_TORCH,
}


def imported(code: str) -> set[str]:
    """Modules of mileage that a program imports, and names that it takes from them, with the module's name before."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}:{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0].split(":")[0] == "mileage"}


def shown_code() -> list[tuple[str, str]]:
    """Programs that the documentation shows, with where they stand."""
    found = [(str(path.relative_to(ROOT)), path.read_text()) for path in sorted((ROOT / "examples").rglob("*.py"))]
    for page in pages():
        for block in python_blocks(ROOT / page):
            lines = [line[4:] for line in block.splitlines() if line.startswith((">>> ", "... "))]
            found.append((page, "\n".join(lines) if lines else block))
    return found


@pytest.mark.parametrize(("where", "code"), shown_code())
def test_shown_code_imports_public_homes_only(where: str, code: str) -> None:
    for name in imported(code):
        module, _, member = name.partition(":")
        assert module in PUBLIC, f"{where} imports {module}"
        if member and f"{module}.{member}" not in PUBLIC and module not in NEED_TORCH:
            home = importlib.import_module(module)
            names = getattr(home, "__all__", [name for name in vars(home) if not name.startswith("_")])
            assert member in names, f"{where} imports {member} from {module}"
