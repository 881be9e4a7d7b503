"""What the papers print of their experiments."""

from flray.config.experiment import Experiment

# as the papers print them: clients, clients per round, rounds
SETTINGS = {
    "fedproj/cifar10": (100, 10, 100), "fedproj/cifar100": (50, 5, 100), "fedproj/cinic10": (100, 10, 60),
    "fedproj/mnli": (15, 4, 15), "fedproj/sst2": (15, 4, 15), "fedproj/marc": (15, 4, 15),
    "fedsol/mnist": (100, 10, 200), "fedsol/cifar10": (100, 10, 300), "fedsol/svhn": (100, 10, 200),
    "fedsol/cinic10": (200, 10, 300), "fedsol/pathmnist": (200, 10, 200), "fedsol/tissuemnist": (200, 10, 200),
}  # fmt: skip


def assert_has(e: Experiment, **expected: object) -> None:
    """The algorithm's fields have the expected values."""
    assert {key: getattr(e.algorithm, key) for key in expected} == expected, (e.name, e.algorithm)
