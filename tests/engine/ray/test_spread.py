"""Pieces of work over actors: all of them, whatever happens to an actor, and an error as what it is."""

import pytest

from flray.core.schema.errors import DataError, ResourceError
from flray.engine.ray.spread import spread
from tests.support.messages import facts


@pytest.mark.slow
def test_every_piece_is_worked_on_although_an_actor_dies(ray_cluster, tmp_path):
    from ray.data import DataContext

    before = DataContext.get_current().enable_progress_bars
    marker = tmp_path / "died"

    def make():
        import os

        def work(piece):
            if piece == 3 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), 9)
            return piece * piece

        return work

    found = dict(spread(make, range(7), 2, 1.0, 0.0, None))
    assert marker.exists() and found == {piece: piece * piece for piece in range(7)}
    assert DataContext.get_current().enable_progress_bars == before  # of the caller's own use of Ray Data


@pytest.mark.slow
def test_an_error_of_the_work_is_raised_as_it_is(ray_cluster):
    def make():
        def work(piece):
            raise DataError(f"piece {piece} is empty; leave it out")

        return work

    with pytest.raises(DataError, match=r"^piece 1 is empty; leave it out$"):
        list(spread(make, [1], "auto", 1.0, 0.0, None))


@pytest.mark.slow
def test_more_actors_than_the_cluster_holds_are_one_line(ray_cluster):
    with pytest.raises(ResourceError, match=facts("resources:", 90, "1 CPUs", 4)):
        list(spread(lambda: lambda piece: piece, [1], 90, 1.0, 0.0, None))
