"""The page of environment variables names those that the source reads or sets, and no others."""

import ast
import re
from pathlib import Path

FLRAY = Path(__file__).parents[2] / "flray"
NAME = re.compile(r"[A-Z][A-Z0-9]*_\w+")  # of a variable, among the texts of an expression


def uses(tree: ast.AST) -> set[str]:
    """Names in `os.environ[...]`, in calls of `os.environ`'s methods, and in `os.getenv(...)`."""
    names = set()
    for node in ast.walk(tree):
        text = ast.unparse(node) if isinstance(node, ast.Call | ast.Subscript) else ""
        if re.match(r"os\.(environ[.\[]|getenv\()", text):
            first = node.slice if isinstance(node, ast.Subscript) else next(iter(node.args), None)
            if isinstance(first, ast.Constant) and isinstance(first.value, str) and NAME.fullmatch(first.value):
                names.add(first.value)
    return names


def test_the_page_names_every_variable_of_the_source() -> None:
    files = [*FLRAY.rglob("*.py"), *(FLRAY.parent / "tuning").rglob("*.py")]
    texts = [path.read_text() for path in files if "init" not in path.parts]
    used = set().union(*(uses(ast.parse(text)) for text in texts if "os.environ" in text or "os.getenv" in text))
    rows = re.findall(r"^\| `(\w+)` \|", (FLRAY / "cli" / "ENVIRONMENT.md").read_text(), re.M)
    assert used == set(rows)


def test_a_use_is_noticed() -> None:
    tree = ast.parse("os.environ.get('FLRAY_A')\nos.environ['FLRAY_B'] = x\nos.getenv('FLRAY_C')\nos.environ[name]")
    assert uses(tree) == {"FLRAY_A", "FLRAY_B", "FLRAY_C"}
