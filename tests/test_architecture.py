"""Who may import whom, and how long a function may be: rules that a reader can rely on, read from the source.

Imports count wherever they stand: in a function as well, and below `if TYPE_CHECKING:`, which only a type checker runs.
A rule that does not hold everywhere yet names its exceptions in `UNTIL`; one that is no longer needed fails as well.
"""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.processes import python

ROOT = Path(__file__).parents[1]

# from the bottom up: a unit imports itself and what stands in a line above it, nothing beside it and nothing below
LEVELS = (
    ("flray.core.schema", "flray.living", "flray.shipped", "flray.streams"),
    ("flray.figure_kinds", "flray.files", "flray.log"),
    ("flray.core.messages",),
    ("flray.core.network",),
    ("flray.core.protocol",),
    ("flray.ops", "flray.models", "flray.data"),
    ("flray.metrics", "flray.uplink"),  # probes compute with the losses of ops
    ("flray.aggregations",),
    # no algorithm knows data, models or scenario, and none of these an algorithm
    ("flray.algorithms", "flray.scenario"),
    ("flray.config",),
    ("flray.rundir",),
    ("flray.engine",),
    ("flray.results",),
    ("flray.running", "flray.doctor", "flray.reference", "flray.synthesis"),
    ("flray.tuning",),
    ("flray.planning",),
    ("flray.bench", "flray.contracts", "flray.api"),
    ("flray.cli",),
)
LEVEL = {unit: level for level, units in enumerate(LEVELS) for unit in units}
HOMES = {"ray": ("flray.engine.ray", "flray.tuning"), "optuna": ("flray.tuning",)}
# imported where they are used: an actor starts fast
SLOW = {"torchvision", "timm", "transformers", "datasets", "matplotlib"}
# the home of what Ray does not promise: its own modules, and names with an underscore
PRIVATE = "flray.engine.ray.private"
INTERNAL = (
    "ray._common", "ray._private", "ray._raylet", "ray.air", "ray.core", "ray.dag", "ray.experimental", "ray.includes",
    "ray.train._internal", "ray.train.v2", "ray.tune.execution", "ray.tune.utils",
)  # fmt: skip
LINES = 60  # of a function, with its docstring

UNTIL = {  # 2026-11-22: what still has to change; take the line out with it
    "down": {},
    "ray": set(),
    "engine knows no Ray": set(),
    "circles": set(),
    "lines": set(),
    "readme": set(),
    "words": set(),
}


class Import(NamedTuple):
    """`module` imports `target`, the full name of a module (or of what `from` takes out of one); `top`: when it is
    imported itself."""

    module: str
    target: str
    top: bool


@cache
def modules() -> dict[str, Path]:
    """All modules by name, `tuning/` as `flray.tuning`; what `flray init` writes is a user's."""
    files = {path.relative_to(ROOT): path for path in (ROOT / "flray").rglob("*.py")}
    files |= {"flray" / path.relative_to(ROOT): path for path in (ROOT / "tuning").rglob("*.py")}
    return {
        ".".join(f.with_suffix("").parts).removesuffix(".__init__"): path
        for f, path in files.items()
        if "init" not in f.parts
    }


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


@cache
def imports() -> tuple[Import, ...]:
    return tuple(chain.from_iterable(_imports(name, tree(path), True) for name, path in modules().items()))


def _imports(module: str, tree: ast.AST, top: bool) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(module, alias.name, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}, line {node.lineno}: an import says the full name"
            yield from (Import(module, f"{node.module}.{alias.name}", top) for alias in node.names)
        else:
            later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
                isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            )
            yield from _imports(module, node, top and not later)


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def module_of(target: str) -> str | None:
    """The module of flray that an import leads to, None for one of another package."""
    return next((name for name in (target, target.rpartition(".")[0]) if name in modules()), None)


def unit_of(name: str) -> str | None:
    """The unit of `LEVELS`; None for `flray` itself, which hands out names of all of them when asked."""
    return next((unit for unit in LEVEL if within(name, unit)), None)


def test_an_import_only_points_down():
    unknown = {name for name in modules() if unit_of(name) is None} - {"flray", "flray.__main__", "flray.core"}
    assert not unknown, f"{unknown}: say in LEVELS who may import them"
    found = {}
    for module, target, _ in imports():
        there = module_of(target)
        here, other = unit_of(module), unit_of(there) if there else None
        if here and other and here != other and LEVEL[other] >= LEVEL[here]:
            found.setdefault(module, set()).add(there)
    assert found == UNTIL["down"]


def test_no_module_imports_itself_by_way_of_others():
    """Also within a package; what a package's own `__init__` hands on is not followed."""
    reached: dict[str, set[str]] = {name: set() for name in modules()}
    for module, target, _ in imports():
        if (there := module_of(target)) not in (None, module):
            reached[module].add(there)
    for middle in modules():  # Warshall
        for targets in reached.values():
            if middle in targets:
                targets |= reached[middle]
    circles = {
        " ".join(sorted(other for other in reached[name] if name in reached[other]))
        for name in modules()
        if name in reached[name]
    }
    assert circles == UNTIL["circles"]


@pytest.mark.parametrize("package", HOMES)
def test_ray_and_optuna_are_at_home_in_one_place(package):
    found = {
        module for module, target, _ in imports() if within(target, package) and not within(module, *HOMES[package])
    }
    assert found == UNTIL.get(package, set())


def test_what_is_private_to_ray_stands_in_one_place():
    """Imported where it is used, so that a Ray without it is a fallback, not an error of `import flray`."""

    def private(name: str) -> bool:
        return within(name, *INTERNAL) or (
            within(name, "ray") and any(p.startswith("_") and p[1] != "_" for p in name.split("."))
        )

    uses = {(module, target) for module, target, _ in imports() if private(target)}
    for module, path in modules().items():
        if within(module, *HOMES["ray"]):
            uses |= {
                (module, text) for n in nodes(path) if isinstance(n, ast.Attribute) and private(text := ast.unparse(n))
            }
            arguments = {key.arg for n in nodes(path) if isinstance(n, ast.Call) for key in n.keywords if key.arg}
            uses |= {(module, name) for name in arguments if name.startswith("_")}
    assert {module for module, _ in uses} & {f"{PRIVATE}.start", f"{PRIVATE}.channel"}, "the test sees what is there"
    assert not {(module, name) for module, name in uses if not within(module, PRIVATE)}
    early = {(i.module, i.target) for i in imports() if i.top and within(i.target, PRIVATE)}
    assert not {module for module, _ in early if not within(module, PRIVATE)}


def test_the_engine_knows_ray_in_the_driver_alone():
    """The driver chooses who runs an exchange; server and client halves, replay and evaluation run where there is no
    Ray."""
    found = {
        module
        for module, target, _ in imports()
        if within(module, "flray.engine")
        and not within(module, "flray.engine.ray")
        and within(target, "flray.engine.ray")
    }
    assert found - {"flray.engine.simulation"} == UNTIL["engine knows no Ray"]


def test_the_engine_names_no_algorithm():
    """It asks what an algorithm declares, never which one it is."""
    assert not [i for i in imports() if within(i.module, "flray.engine") and within(i.target, "flray.algorithms")]
    asked = [
        f"{name}, line {node.lineno}: {ast.unparse(node)}"
        for name, path in modules().items()
        if within(name, "flray.engine")
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "isinstance"
        and ast.unparse(node.args[0]).endswith("algorithm")
    ]
    assert not asked


def test_what_is_slow_to_import_is_imported_where_it_is_used():
    assert not [(module, target) for module, target, top in imports() if top and target.partition(".")[0] in SLOW]
    loaded = "import sys, {}; print(*{{name.partition('.')[0] for name in sys.modules}})"

    def packages(*names: str) -> set[str]:
        return set(python("-c", loaded.format(", ".join(names)), cwd=ROOT).stdout.split())

    assert not packages("flray") & {*SLOW, "torch", "ray", "pandas", "pydantic"}
    reads = (
        "flray.running",
        "flray.cli",
        "flray.config.declared",
        "flray.results.essentials",
        "flray.tuning.sweep_file",
    )
    assert not packages(*reads) & {*SLOW, "torch", "ray", "pandas", "optuna", "pyarrow"}
    assert not packages("flray.running", "flray.engine.ray.actors") & {*SLOW, "pandas", "optuna", "scipy", "sklearn"}


def test_a_function_has_at_most_60_lines():
    functions = (
        (f"{name}.{node.name}", (node.end_lineno or 0) - node.lineno + 1)
        for name, path in modules().items()
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert {name for name, lines in functions if lines > LINES} == UNTIL["lines"]


def test_every_folder_says_what_is_in_it():
    """A README.md each."""
    folders = {path.parent for path in modules().values()} - {ROOT / "flray"}
    assert {str(folder.relative_to(ROOT)) for folder in folders if not (folder / "README.md").is_file()} == UNTIL[
        "readme"
    ]


def test_tests_lie_where_the_code_lies():
    """`tests/engine/ray/` is about `flray/engine/ray/`, `tests/tuning` about `flray/tuning`; two folders are about
    all of flray."""
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")} - {Path()}
    places = {path.parent.relative_to(ROOT) for path in modules().values()}
    known = {place.relative_to("flray") for place in places if place.parts[0] == "flray"} | places
    assert {str(folder) for folder in folders - known} == {"faults", "gpu"}


def test_no_test_imports_another():
    """What tests share stands in `tests/support/` or beside them, in a module that is not collected."""
    imported = re.compile(r"^\s*(?:from|import) tests(?:\.\w+)*(?:\.| import )test_\w+", re.MULTILINE)
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in (ROOT / "tests").rglob("*.py")
        for line in imported.findall(path.read_text())
    ]
    assert imported.search("from tests.engine.test_graph import run") and imported.search("import tests.test_api")
    assert not found, "move what both need to tests/support/:\n" + "\n".join(found)


# what a reader outside cannot look up: a document and folders that are not in the repository
UNREACHABLE = re.compile(
    r"(?i)\bspec(?:ification)?s?(?:[\s#]|'s)*\(?(?:sections? )?[0-9]|\bspec/|\bspec section|\bseeds? 00[0-9]"
    r"|\.\./shared|specification of continual|flray's spec|none was lent"
)


def test_what_is_cited_can_be_looked_up():
    """A citation names a paper's section, equation or table, an official file, or a card."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    files = [ROOT / name for name in names.split("\0") if name and not name.startswith(".ci/")]
    found = []
    for file in files:
        if file == Path(__file__) or file.suffix in {".png", ".gif"} or not file.is_file():
            continue
        text = file.read_text("utf-8", errors="ignore")
        found += [f"{file.relative_to(ROOT)}: {match.group()!r}" for match in UNREACHABLE.finditer(text)]
    assert not found, "cite the paper, the official file or a card instead of:\n" + "\n".join(found)


# words of this project alone: the field has a name for each of these things
DIALECT = frozenset(
    [
        "aloud",
        "around",
        "aside",
        "bell",
        "carry",
        "doing",
        "found",
        "held",
        "hop",
        "kept",
        "lasting",
        "made",
        "maker",
        "moved",
        "pulse",
        "room",
        "settle",
        "settled",
        "still",
        "telling",
        "told",
        "whereabouts",
        "whole",
    ]
)
FIELD_WORDS = ("held_out", "not_found", "whole_number")  # terms of the field that contain one
PHRASES = re.compile(
    r"(?i)\b(?:stands? not yet|what is torn|lacks nothing but|of nobody there|is nobody's state|is told as that"
    r"|goes? aloud|, aloud\b|has it from there)"
)


def names_of(tree: ast.AST) -> set[str]:
    """The names of a module's functions, methods, classes and arguments."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names


def dialect_in(name: str) -> set[str]:
    """The words of `DIALECT` in a name, in snake_case or CamelCase."""
    for term in FIELD_WORDS:
        name = name.replace(term, "")
    return DIALECT & {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}


def test_names_are_words_of_the_field():
    """Functions, methods, classes and arguments; local names and columns of tables are not read."""
    found = {
        f"{module}.{name}" for module, path in modules().items() for name in names_of(tree(path)) if dialect_in(name)
    }
    assert found == UNTIL["words"]


def test_the_rule_of_words_finds_them():
    assert dialect_in("print_kept") == {"kept"} and dialect_in("ListHeld") == {"held"} and dialect_in("hop") == {"hop"}
    assert not dialect_in("held_out") and not dialect_in("holder") and not dialect_in("broom")


def test_docstrings_and_messages_need_one_reading():
    """No text of a module has one of the phrases that readers stumbled over."""
    found = [
        f"{module}, line {node.lineno}: {match.group()!r}"
        for module, path in modules().items()
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for match in PHRASES.finditer(node.value)
    ]
    assert not found


# writers ------------------------------------------------------------------------------------------
WRITES = {"write_text", "write_bytes", "savefig", "to_csv", "to_parquet", "write_table", "save_file", "copyfile"}
ASIDE = {"atomic_write", "atomic_folder", "drawing"}
# a file of its own that nothing replaces: scratch of a benchmark, the log of a started process, a new lock or token
OWN = (
    "flray.bench", "flray.engine.ray.auth", "flray.rundir.lock",
    "flray.files", "flray.streams",
)  # fmt: skip
GIVEN = {  # (module, function): it writes to memory, or to a path that its caller has made aside
    ("flray.results.pictures", "svg"), ("flray.results.figures", "_repr_png_"), ("flray.results.rendering", "csv"),
    ("flray.data.sources.arrays", "_split_of"), ("flray.data.sources.objects", "_write_parquet"),
}  # fmt: skip


def test_a_file_that_replaces_another_is_written_aside():
    """A call that writes a file stands in a `with` of `ASIDE`, or is `flray.files.write_text`, which has one."""
    found = []
    for name, path in modules().items():
        if not within(name, *OWN):
            found += [f"{name}, line {line}" for line in _bare_writes(tree(path), name, "", False)]
    assert not found


def _bare_writes(node: ast.AST, module: str, function: str, aside: bool) -> Iterator[int]:
    for child in ast.iter_child_nodes(node):
        inside, within_function = aside, function
        if isinstance(child, ast.With):
            inside = aside or any(_called(item.context_expr) in ASIDE for item in child.items)
        if isinstance(child, ast.FunctionDef):
            within_function = child.name
        if isinstance(child, ast.Call) and not inside and (module, function) not in GIVEN and _writes(child):
            yield child.lineno
        yield from _bare_writes(child, module, within_function, inside)


def _writes(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return False  # `write_text` of `flray.files`
    if _called(call) == "open":
        return any(isinstance(each, ast.Constant) and str(each.value)[:1] in ("w", "x") for each in call.args)
    return _called(call) in WRITES


def _called(expression: ast.expr) -> str:
    function = expression.func if isinstance(expression, ast.Call) else expression
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
