"""What a user writes after flray's pages passes a type checker that sees flray as an installed, typed package."""

import os
import re
from pathlib import Path

import pytest

from tests.support.processes import python

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "pages" / "tutorials").glob("*.md"))
PAGES = ("README.md", "flray/algorithms/README.md", "docs/pages/index.md", *TUTORIALS)
TEMPLATE = ROOT / "flray" / "cli" / "init" / "my_algorithm.py"


@pytest.mark.slow
def test_the_examples_of_the_pages_have_no_type_error(tmp_path: Path) -> None:
    blocks = [code for page in PAGES for code in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)]
    assert len(blocks) >= 14
    for number, code in enumerate([*blocks, TEMPLATE.read_text()]):
        (tmp_path / f"example_{number}.py").write_text(code)
    settings = ("--check-untyped-defs", "--ignore-missing-imports", "--follow-imports=silent", "--config-file=")
    files = sorted(path.name for path in tmp_path.glob("*.py"))
    python("-m", "mypy", *settings, *files, cwd=tmp_path, env=os.environ | {"MYPYPATH": str(ROOT)})
