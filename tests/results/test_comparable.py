"""What is not comparable is said, with the keys; what is comparable is left in peace."""

from pathlib import Path
from typing import Any

from flray.files import with_checksum
from flray.results import compare, summary
from flray.results.comparable import caveats
from flray.rundir.reader import Run
from tests.support.commands import invoke
from tests.support.tables import config, folder


def said(*folders: Path, reference: Any = None) -> list[str]:
    runs = [Run(path) for path in folders]
    return caveats(runs, compare(runs), reference=reference)


def noted(path: Path, version: str = "1", data: str = "a", **machine: str) -> Path:
    values = {"packages": {"flray": version, "torch": "2"}, "fingerprints": {"data": data, "partition": "p", **machine}}
    (path / "environment.json").write_text(with_checksum(values))
    return path


def with_sources(path: Path, **modules: str) -> Path:
    fingerprints = {f"modules.{name}": source for name, source in modules.items()}
    (path / "environment.json").write_text(with_checksum({"fingerprints": fingerprints}))
    return path


def test_algorithms_on_one_setting_and_an_ablation_of_one_key_are_comparable(tmp_path: Path) -> None:
    runs = [folder(tmp_path / name, config(name), [0.5]) for name in ("fedavg", "fedsol")]
    assert said(*runs) == []
    runs = [folder(tmp_path / f"r{rounds}", config(rounds=rounds), [0.5]) for rounds in (3, 4)]
    assert said(*runs) == [] and said(runs[0]) == []


def test_runs_of_one_seed_with_other_results_are_named(tmp_path: Path) -> None:
    """A repeated run with the same result, and one that failed, are no news."""
    first, same, failed, other = (
        folder(tmp_path / name, config(), [accuracy], status)
        for name, accuracy, status in (
            ("a", 0.5, "finished"), ("b", 0.5, "finished"), ("c", 0.7, "failed: disk"), ("d", 0.6, "finished"),
        )
    )  # fmt: skip
    fedsol = folder(tmp_path / "sol", config("fedsol"), [0.6])
    assert said(first, same, failed) == said(first, same, failed, fedsol) == []
    for more in ([], [fedsol]):
        (text,) = said(first, other, *more)
        assert "of test/acc, and of each seed the last counts" in text and str(first) in text and str(other) in text
        assert summary(compare([first, other, *more]))["mean"][0] == 0.6


def test_another_algorithm_on_another_setting_is_not_and_the_keys_are_named(tmp_path: Path) -> None:
    runs = [
        folder(tmp_path / "a", config("fedavg", rounds=5), [0.9]),
        folder(tmp_path / "b", config("fedsol", model={"name": "mlp", "hidden": [9]}), [0.5]),
        folder(tmp_path / "c", config("fedprox", rounds=5, lr=0.2), [0.5]),
    ]
    first, second = said(*runs)
    assert first.startswith("Not comparable: 1 of 2 settings differ from FedAvg, rounds=5, hidden=[8], lr=0.1 in ")
    assert "rounds (3 against 5), model.hidden ([9] against [8]) as well as in the algorithm: FedSOL, rounds=3" in first
    assert second == ("Algorithms differ in hyper-parameters that both have: algorithm.lr (FedAvg 0.1, FedProx 0.2).")
    assert "differ from FedSOL" in said(*runs, reference="fedsol")[0]


def test_an_option_that_two_algorithms_declare_for_themselves_is_no_shared_one(tmp_path: Path) -> None:
    """`beta` weighs one loss in FedSOL and another in FedNTD; `local_epochs` is FedAvg's, which both inherit."""

    def one(name: str, **options: float) -> Path:
        values = config(name)
        return folder(tmp_path / f"{name}{len(options)}", values | {"algorithm": values["algorithm"] | options}, [0.5])

    assert said(one("fedsol", beta=1.0), one("fedntd", beta=0.5)) == []
    (shared,) = said(one("fedsol", beta=1.0, local_epochs=5), one("fedntd", beta=0.5, local_epochs=2))
    assert "algorithm.local_epochs (FedSOL 5, FedNTD 2)" in shared and "beta" not in shared
    own = [one("mine", beta=2.0), one("fedsol", beta=1.0, batch_size=1, local_epochs=1)]
    assert said(*own) == [], "of an algorithm that is not imported only FedAvg's options are known"


def test_kinds_of_processor_are_said(tmp_path: Path) -> None:
    """Once where the clients are of the server's kind. A run of before, which does not say, is left out."""
    runs = [folder(tmp_path / str(seed), config("fedavg", seed), [0.9]) for seed in range(3)]
    kinds = *({"arithmetic": kind, "client_arithmetic": kind} for kind in ("AVX2", "AVX512")), {}
    for run, kind in zip(runs, kinds, strict=True):
        noted(run, **kind)
    assert said(*runs) == [
        "Runs of several kinds of arithmetic of the server: AVX2 (1 runs), AVX512 (1 runs); their bits need not agree."
    ]


def test_data_versions_seeds_and_cost(tmp_path: Path) -> None:
    runs = [
        noted(folder(tmp_path / "a", config("fedavg", 0), [0.9], **{"comm/up_bytes": 300})),
        noted(folder(tmp_path / "b", config("fedsol", 0), [0.5]), "2", "b"),
        noted(folder(tmp_path / "c", config("fedsol", 1), [0.5])),
    ]
    data, versions, seeds, cost = said(*runs)
    assert data.startswith(f"Not comparable: the training data of {runs[0]} and {runs[1]} differ, though seed and")
    assert versions == "Runs of several versions of flray: 1 (2 runs), 2 (1 runs); their bits need not agree."
    assert seeds.startswith("1 of 1 settings have not the seeds of FedAvg (FedSOL: 1 in one of the two only)")
    assert cost == "A comparison at unequal cost: bytes up up to 3 times (FedAvg against FedSOL)."


def test_the_command_says_so_below_the_table_and_beside_csv(tmp_path: Path) -> None:
    folder(tmp_path / "a", config("fedavg"), [0.9])
    folder(tmp_path / "b", config("fedsol", rounds=7), [0.5])
    shown = invoke("compare", tmp_path)
    assert shown.exit_code == 0 and "* Not comparable: 1 of 1 settings" in shown.stdout
    table = invoke("compare", tmp_path, "--format", "csv")
    assert "Not comparable" in table.stderr and len(table.stdout.splitlines()) == 3


def test_runs_of_one_setting_with_other_sources_are_named(tmp_path: Path) -> None:
    """As two modules that register one name, or one that was edited between two runs."""
    runs = [folder(tmp_path / str(seed), config("fedavg", seed), [0.5]) for seed in (0, 1)]
    with_sources(runs[0], mine="a", __main__="x")
    with_sources(runs[1], mine="a", __main__="y")
    assert said(*runs) == []
    for modules in ({"mine": "b"}, {"other": "a"}):
        with_sources(runs[1], **modules)
        (sentence,) = said(*runs)
        assert sentence.startswith(f"Not comparable: {runs[0]} and {runs[1]} are of one setting and ran other sources")


def test_data_and_modules_that_changed_before_a_resume_are_named(tmp_path: Path) -> None:
    runs = [folder(tmp_path / str(seed), config("fedavg", seed), [0.5]) for seed in (0, 1)]
    names = ("partition", "modules.mine", "arithmetic", "algorithm.lr")
    accepted = [{"what": name, "was": "a", "is": "b", "done": 1} for name in names]
    (runs[1] / "environment.json").write_text(with_checksum({"accepted": accepted}))
    (sentence,) = said(*runs)
    assert sentence.startswith(f"A resume continued {runs[1]} with other partition and modules.mine than it began with")


def test_settings_that_name_one_network_of_other_sources_are_named(tmp_path: Path) -> None:
    """FedAvg on the old `en.py`, FedSOL on the new one: a module that both name is compared, others are not."""

    def ran(name: str, algorithm: str, model: str, imports: list[str], **modules: str) -> Path:
        path = folder(tmp_path / name, config(algorithm, model={"name": model}, imports=imports), [0.5])
        return with_sources(path, **modules)

    old, same = (ran(name, name, "en:E", ["en"], en="a") for name in ("fedavg", "fedprox"))
    new = ran("new", "fedsol", "en:E", ["en"], en="b")
    assert said(old, same) == []
    (sentence,) = said(old, new)
    assert sentence.startswith(f"Not comparable: model en:E is not the same in {old} and {new}, whose sources of en ")
    registered = [ran(f"r{source}", f, "mine", ["en"], en=source) for f, source in (("fedavg", "a"), ("fedsol", "b"))]
    assert "model mine is not the same" in said(*registered)[0]
    scripts = [
        ran(f"s{source}", f, "__main__:E", [], **{"__main__": source, "__main__:E": own})
        for f, source, own in (("fedavg", "a", "x"), ("fedprox", "b", "x"), ("fedsol", "c", "y"))
    ]
    assert said(*scripts[:2]) == [] and "sources of __main__:E differ" in said(scripts[0], scripts[2])[0]


def test_a_module_of_which_a_run_names_nothing_does_not_count(tmp_path: Path) -> None:
    runs = [folder(tmp_path / str(seed), config("fedavg", seed, imports=["other"]), [0.5]) for seed in (0, 1)]
    for path, source in zip(runs, "ab", strict=True):
        with_sources(path, other=source)
    assert said(*runs) == []
