"""A searcher of Ray Tune that takes trials from the studies of a sweep and reports their results to them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from flray.tuning.studies import Studies


class StudySearcher(Searcher):
    """A searcher of Ray Tune over the studies.

    Does not report trials that `stopping()` ended early: a resume continues them.
    """

    def __init__(
        self,
        studies: Studies,
        config: Callable[[str, dict[str, Any], Path], dict[str, Any]],
        stopping: Callable[[], bool],
        spent: Callable[[], Collection[str | None]] = tuple,
    ) -> None:
        super().__init__()
        self.studies, self._config, self._stopping, self._spent = studies, config, stopping, spent
        self._keys: dict[str, str] = {}  # Ray Tune's id of a trial -> its key
        self._last: dict[str, dict[str, Any]] = {}  # -> its last result

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # FINISHED is a word
        suggested = None
        with self.studies.keeping():
            suggested = self._next()
        if suggested is None:
            waits = self.studies.waits() and not self._stopping()
            return None if waits else str(Searcher.FINISHED)  # None: Ray Tune asks again
        key, overrides, folder = suggested
        self._keys[trial_id] = key
        return self._config(key, overrides, folder)

    def _next(self) -> tuple[str, dict[str, Any], Path] | None:
        """A trial that is to be trained."""
        while not self._stopping():
            suggested = self.studies.next(self._spent())
            if suggested is None or not self.studies.spared(suggested[0]):
                return suggested
        return None

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._last[trial_id] = result
        if self.studies.error is None:
            with self.studies.keeping():
                self.studies.report(self._keys[trial_id], result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        key = self._keys[trial_id]
        if result and not error:
            self.on_trial_result(trial_id, result)
        last = self._last.pop(trial_id, {})  # Hyperband stops trials that are paused: they come without a result
        if error:
            last = {**last, "status": "failed: its processes were lost too often"}
        if last and self.studies.error is None:
            with self.studies.keeping():
                self.studies.tell(key, last)

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: the studies are on disk."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing: a resume makes a new searcher over the same studies."""
