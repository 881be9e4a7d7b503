"""What the README shows works: its FedProx runs from outside the package, and mu = 0 is FedAvg."""

import re
from pathlib import Path

from safetensors.numpy import load_file

import flray

ROOT = Path(__file__).parent.parent
FAST = ["rounds=2", "partition.clients=4", "cohort.size=4", "algorithm.local_epochs=1", "evaluate.clients=false"]


def example() -> str:
    (code,) = re.findall(r"```python\n(# fedprox_example.py\n.*?)```", (ROOT / "README.md").read_text(), re.S)
    return code


def test_fedprox_of_the_readme(ray_cluster, tmp_path, monkeypatch):
    code = example()
    assert len([line for line in code.splitlines() if line.strip()]) < 20
    (tmp_path / "fedprox_example.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    models = {}
    for name, more in {
        "fedavg": ["algorithm=fedavg"],
        "mu0": ["algorithm=fedprox-example", "algorithm.mu=0"],
        "mu1": ["algorithm=fedprox-example", "algorithm.mu=1"],
    }.items():
        imports = ["fedprox_example"] if "mu" in name else []
        flray.run(ROOT / "configs" / "quickstart.yaml", *FAST, *more, out=tmp_path / name, imports=imports)
        models[name] = load_file(tmp_path / name / "model.safetensors")
    assert all((models["fedavg"][key] == models["mu0"][key]).all() for key in models["fedavg"])
    assert any((models["fedavg"][key] != models["mu1"][key]).any() for key in models["fedavg"])
