"""Names of other packages, which their entry points add to a table."""

import json
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


def test_what_every_process_finds_itself_is_not_sent_to_others(monkeypatch):
    """The entry point of an installed package; not what a module registers, nor what it has put in its place."""
    monkeypatch.setattr(registry.Registry, "tables", [])
    point = SimpleNamespace(name="theirs", value="json.decoder:JSONDecoder")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    table, names = registry.Registry("thing", {}), ["theirs", "mine"]
    table.add("mine", json.JSONEncoder)
    table.check("theirs")
    table.add("theirs", json.JSONDecoder)  # the module does so when it is imported
    assert table.own_entries(names, []) == [("mine", "json.encoder:JSONEncoder")]
    table.replace("theirs", "json.encoder:JSONEncoder")
    assert dict(table.own_entries(names, []))["theirs"] == "json.encoder:JSONEncoder"
