"""A report as a browser renders it: nothing overflows on a phone, nothing is fetched, light and dark can be read."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import flray
from flray.results.report_page import report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine: apt-get install chromium"),
]
PHONE, DESK = 400, 1200
# the page in a frame of its own, so that it is as narrow as we say: a window is at least 500 wide
MEASURE = """<!doctype html><meta name="color-scheme" content="light dark"><body>
<iframe id="frame" style="width:{width}px;height:900px;border:0" srcdoc="{page}"></iframe><pre id="found"></pre>
<script>frame.onload = () => {{
  const page = frame.contentDocument, root = page.documentElement, box = e => e.getBoundingClientRect()
  const outside = [...page.querySelectorAll("body *")].filter(e => !e.closest(".wide *") && box(e).right > {width} + 1)
  const style = frame.contentWindow.getComputedStyle(page.body)
  const size = e => parseFloat(frame.contentWindow.getComputedStyle(e).fontSize)
  const letter = e => size(e) * box(e.ownerSVGElement).width / e.ownerSVGElement.viewBox.baseVal.width
  found.textContent = JSON.stringify({{
    width: root.clientWidth, scroll: root.scrollWidth, outside: outside.map(e => e.tagName),
    fetched: frame.contentWindow.performance.getEntriesByType("resource").map(e => e.name),
    text: style.color, ground: style.backgroundColor, heads: [...page.querySelectorAll("h2")].map(e => e.textContent),
    letters: [...page.querySelectorAll("svg text")].map(letter),
    pictures: [...page.querySelectorAll("svg")].map(e => box(e).height), tables: page.querySelectorAll("table").length,
  }})
}}</script>"""


def browse(path: Path, *options: str) -> str:
    """What the browser prints."""
    command = [
        str(BROWSER),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={path.parent}/profile",
    ]
    done = subprocess.run([*command, *options, path.as_uri()], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


def measured(page: Path, width: int, dark: bool = False) -> dict[str, Any]:
    frame = page.with_name(f"frame-{width}.html")
    frame.write_text(MEASURE.format(width=width, page=html.escape(page.read_text())))
    dom = browse(frame, "--dump-dom", f"--blink-settings=preferredColorScheme={0 if dark else 1}")
    found = re.search(r'<pre id="found">(.+?)</pre>', dom, re.DOTALL)
    assert found, "the page did not load"
    return json.loads(html.unescape(found[1]))


def contrast(first: str, second: str) -> float:
    """Of two colours `rgb(r, g, b)`, by WCAG 2.1: from 1 to 21, and 4.5 for text."""

    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    high, low = sorted((light(first), light(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods in two settings on real flowers, over two seeds, and a folder that is no run."""
    root = tmp_path_factory.mktemp("report")
    config = {
        "data": {"source": "iris"}, "partition": {"name": "dirichlet", "clients": 4, "alpha": 0.5, "min_size": 2},
        "model": {"name": "mlp", "hidden": [4]}, "resources": {"executor": "local"}, "rounds": 3,
        "evaluate": {"finetune_epochs": [0]},
    }  # fmt: skip
    runs: list[Any] = [
        flray.run(
            {
                **config, "name": "a-rather-long-name-of-an-experiment", "seed": seed, "algorithm": {
                    "name": name, "lr": 0.1, "local_epochs": epochs, "batch_size": 8
                }, "diagnostics": ["local_forgetting"], "cohort": {"size": size},
            },
            out=root / f"{name}-{size}-{seed}",
            progress=False,
        )
        for name, epochs in (("fedavg", 1), ("fedprox", 1), ("fedsol", 2))
        for size in (2, 4)
        for seed in (0, 1)
    ]  # fmt: skip
    (root / "foreign").mkdir()
    return report([*runs, root / "foreign"], root / "report.html")


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_everything_is_there_and_nothing_overflows_or_is_fetched(page: Path, width: int) -> None:
    found = measured(page, width)
    assert found["scroll"] <= found["width"] <= width and found["outside"] == []
    assert found["fetched"] == []
    wanted = {
        "Settings", "Learning curves", "Over local steps", "Class by class", "Over cohort.size", "Mean ranks",
        "What local training forgets", "Who holds what", "Clients and classes", "Cost", "Runs", "Left out",
    }  # fmt: skip
    assert wanted <= set(found["heads"])
    assert len(found["pictures"]) >= 7 and min(found["pictures"]) > 80 and found["tables"] >= 5
    assert min(found["letters"]) > 6  # pixels: what one can read on a phone without a glass


def test_light_and_dark_can_be_read(page: Path) -> None:
    light, dark = measured(page, DESK), measured(page, DESK, dark=True)
    assert light["ground"] == "rgb(255, 255, 255)" != dark["ground"]
    assert min(contrast(found["text"], found["ground"]) for found in (light, dark)) > 7
    shot = page.with_name("page.png")
    browse(page, f"--screenshot={shot}", f"--window-size={DESK},3000", "--blink-settings=preferredColorScheme=0")
    assert shot.stat().st_size > 30_000
