"""Names of other packages, which their entry points add to a table."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from flray.core.schema import registry


def test_a_name_is_known_to_a_thread_that_asks_while_another_reads_the_entry_points(monkeypatch):
    monkeypatch.setattr(registry.Registry, "tables", [])
    table, asked = registry.Registry("thing", {}), []

    def points(group):
        asked.append(group)
        if len(asked) == 1:
            with ThreadPoolExecutor(1) as other:
                other.submit(table.check, "theirs").result()
        return [SimpleNamespace(name="theirs", value="their_package:Thing")]

    monkeypatch.setattr(registry, "entry_points", points)
    table.check("theirs")
    assert table.names() == ["theirs"] and asked == ["flray.things"] * 2
