from tests.mutants import MUTANTS, unclear


def test_every_mistake_can_still_be_made():
    """A line that was changed would leave its mistake unmade, and the count of `python -m tests.mutants` wrong."""
    assert len(MUTANTS) >= 325
    assert [problem for mutant in MUTANTS if (problem := unclear(mutant))] == []
