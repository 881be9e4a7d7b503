"""Do the tests notice when the maths is wrong? `python -m tests.mutants [NUMBER ...]` makes 60 small mistakes in a copy
of flray, one at a time: a sign, a weight, an index, one too many or too few.

For each mistake the tests named beside it run, the fast ones only, for at most `LIMIT_S` seconds, and at least one must
fail. The last line counts those that were caught; the exit status is 1 if one was not. Tests run in a fork that has
torch and pytest loaded, which takes about 10 minutes on one core.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple, NoReturn

import hypothesis  # noqa: F401  loaded once, for all forks
import pandas  # noqa: F401
import pytest
import torch  # noqa: F401

ROOT = Path(__file__).parents[1]
LIMIT_S = 300.0  # of one mistake's tests


class Mutant(NamedTuple):
    """`old`, which stands once in `file`, becomes `new`; `tests` should notice, those whose names have `only`."""

    file: str
    old: str
    new: str
    tests: str
    only: str = ""


MUTANTS = (
    # ops: projection, perturbation, subspaces
    Mutant("ops/project.py", "(q > delta) & (a < 0)", "(q > delta) & (a > 0)", "ops/test_project.py"),
    Mutant(
        "ops/project.py", "g, g_mem, coefficient, value=-1", "g, g_mem, coefficient, value=1", "ops/test_project.py"
    ),
    Mutant("ops/project.py", "ratio = a / (q + eps)", "ratio = a / (q - eps)", "ops/test_project.py"),
    Mutant("ops/project.py", "(dot(g, g) * q).sqrt()", "(dot(g, g) + q).sqrt()", "ops/test_project.py"),
    Mutant("ops/perturb.py", "factor = rho / (norm + eps)", "factor = rho * (norm + eps)", "ops/test_perturb.py"),
    Mutant("ops/perturb.py", "norm < min_norm, 0.0", "norm > min_norm, 0.0", "ops/test_perturb.py"),
    Mutant("ops/perturb.py", "out=out).add_(eta)", "out=out).sub_(eta)", "ops/test_perturb.py"),
    Mutant("ops/perturb.py", "out[s].sqrt_()", "out[s].sqrt()", "ops/test_perturb.py"),
    Mutant("ops/subspace.py", "a - basis @ (basis.T @ a)", "a + basis @ (basis.T @ a)", "ops/test_subspace.py"),
    Mutant(
        "ops/subspace.py",
        "[: self.count])\n        self._keys",
        "[1 : self.count + 1])\n        self._keys",
        "ops/test_subspace.py",
    ),
    Mutant("ops/subspace.py", "share = 0.0 if first else 1 -", "share = 0.0 if first else 0 -", "ops/test_subspace.py"),
    Mutant("ops/subspace.py", "            k *= 2", "            k *= 4", "ops/test_subspace.py"),
    # ops: sums, losses, optimisers
    Mutant("ops/average.py", "left.place // 2, value, None", "left.place // 2 + 1, value, None", "ops/test_average.py"),
    Mutant("ops/average.py", "alpha=1 if weight is None or weight == 1 else weight", "alpha=1", "ops/test_average.py"),
    Mutant("ops/average.py", "level=last.level + 1, place", "level=last.level + 2, place", "ops/test_average.py"),
    Mutant("ops/average.py", "[1.0 / count] * count", "[1.0] * count", "ops/test_average.py ops/test_pooling.py"),
    Mutant(
        "ops/losses.py",
        "torch.log_softmax(student / temperature, dim=1)\n    if",
        "torch.log_softmax(student, dim=1)\n    if",
        "ops/test_losses.py",
    ),
    Mutant("ops/losses.py", "return temperature**2 * kl", "return temperature * kl", "ops/test_losses.py"),
    Mutant("ops/losses.py", "place + (place >= y[:, None])", "place + (place > y[:, None])", "ops/test_losses.py"),
    Mutant("ops/losses.py", "F.softplus(a - b)", "F.softplus(b - a)", "ops/test_losses.py"),
    Mutant("ops/losses.py", 'if direction == "reverse"', 'if direction == "forward"', "ops/test_losses.py"),
    Mutant("ops/optim.py", "1 - beta2 ** (moments.steps + 1)", "1 - beta2 ** moments.steps", "ops/test_optim.py"),
    Mutant("ops/optim.py", "lerp_(g, 1 - beta1)", "lerp_(g, beta1)", "ops/test_optim.py"),
    Mutant(
        "ops/optim.py",
        "torch.add(g, moments.first, alpha=momentum",
        "torch.add(moments.first, g, alpha=momentum",
        "ops/test_optim.py",
    ),
    Mutant(
        "ops/optim.py",
        "w if reached is None else w * reached",
        "w",
        "ops/test_optim.py core/network/test_objective.py",
    ),
    Mutant("ops/control.py", "total * (1 - shrink) + 1", "total * (1 + shrink) + 1", "algorithms/test_fednova.py"),
    Mutant(
        "ops/control.py",
        "(1 - momentum**steps)",
        "(1 - momentum ** (steps + 1))",
        "algorithms/test_scaffold.py algorithms/test_fednova.py",
    ),
    Mutant(
        "ops/distill.py", "factor = temperature**2 if squared", "factor = temperature if squared", "ops/test_distill.py"
    ),
    Mutant("ops/distill.py", "mul_(2 * strength)", "mul_(strength)", "ops/test_distill.py algorithms/test_fedproj.py"),
    Mutant("ops/distill.py", "logits.div_(len(w))", "logits.div_(len(w) + 1)", "ops/test_distill.py"),
    Mutant("ops/distill.py", "alpha=-rate)", "alpha=rate)", "ops/test_distill.py"),
    Mutant(
        "ops/memory.py",
        "np.arange(step * size, (step + 1) * size)",
        "np.arange(step * size + 1, (step + 1) * size + 1)",
        "algorithms/test_fedproj.py",
    ),
    Mutant(
        "ops/memory.py", "g_mem.add_(g, alpha=len(piece) / len(chosen))", "g_mem.add_(g)", "algorithms/test_fedproj.py"
    ),
    Mutant("ops/detect.py", "apart**2 * count * n / (count + n)", "apart**2 * n / (count + n)", "ops/test_detect.py"),
    Mutant("ops/detect.py", "for name in chosen) - noise", "for name in chosen) + noise", "ops/test_detect.py"),
    Mutant("ops/detect.py", "[-last:]", "[: last]", "ops/test_detect.py"),
    # metrics
    Mutant(
        "metrics/forgetting.py",
        "R[-1, :-1] - R.diagonal()[:-1]",
        "R.diagonal()[:-1] - R[-1, :-1]",
        "metrics/test_forgetting.py",
    ),
    Mutant(
        "metrics/forgetting.py",
        "R.diagonal(offset=1) - start[1 :",
        "R.diagonal(offset=1) - start[0 :",
        "metrics/test_forgetting.py",
    ),
    Mutant("metrics/forgetting.py", "back[0] - (stop - 1)", "back[0] - stop", "metrics/test_forgetting.py"),
    Mutant(
        "metrics/forgetting.py",
        "accuracies >= level - margin",
        "accuracies >= level + margin",
        "metrics/test_forgetting.py",
    ),
    Mutant(
        "metrics/classification.py",
        "np.add.accumulate(self.losses)[-1]",
        "np.add.accumulate(self.losses)[0]",
        "metrics/test_classification.py",
    ),
    Mutant(
        "metrics/classification.py",
        "int(np.nanargmin(accuracies))",
        "int(np.nanargmax(accuracies))",
        "metrics/test_classification.py",
    ),
    Mutant("metrics/fairness.py", "- (count + 1) / count", "- (count - 1) / count", "metrics/test_fairness.py"),
    Mutant("metrics/fairness.py", "np.argsort(-apart", "np.argsort(apart", "metrics/test_fairness.py"),
    # algorithms
    Mutant(
        "algorithms/fedavg.py",
        "self.lr * self.lr_decay**ctx.clock.round",
        "self.lr * self.lr_decay ** (ctx.clock.round + 1)",
        "algorithms/test_fedavg.py",
    ),
    Mutant(
        "algorithms/fedavg.py",
        "alpha=-self.learning_rate(ctx))\n        return",
        "alpha=self.learning_rate(ctx))\n        return",
        "algorithms/test_fedavg.py",
    ),
    Mutant(
        "algorithms/scaffold.py",
        "torch.sub(broadcast.c, client.c, out",
        "torch.sub(client.c, broadcast.c, out",
        "algorithms/test_scaffold.py",
    ),
    Mutant(
        "algorithms/scaffold.py",
        "alpha=1 / ctx.population",
        "alpha=1 / ctx.cohort_size",
        "algorithms/test_scaffold.py",
    ),
    Mutant(
        "algorithms/feddyn.py",
        "mean.w, h, alpha=1 / self.alpha",
        "mean.w, h, alpha=self.alpha",
        "algorithms/test_feddyn.py",
    ),
    Mutant("algorithms/fedproj.py", "< self.projection_rate)", "> self.projection_rate)", "algorithms/test_fedproj.py"),
    Mutant(
        "algorithms/fedprotip.py",
        "(self.eps + ctx.clock.task * self.delta_eps",
        "(self.eps - ctx.clock.task * self.delta_eps",
        "contracts/test_contracts.py algorithms/test_fedprotip.py",
        "fedprotip",
    ),
    Mutant("algorithms/fedmemo.py", '"r0": self.r0 - 1', '"r0": self.r0', "algorithms/test_fedmemo.py"),
    Mutant(
        "ops/proxy_step.py",
        "proxy_examples / (examples + proxy_examples)",
        "proxy_examples / examples",
        "ops/test_proxy_step.py algorithms/test_fedmemo.py",
    ),
    # data and scenario
    Mutant("scenario/partitioners.py", "sizes[:more] += 1", "sizes[: more + 1] += 1", "scenario/test_partition.py"),
    Mutant("scenario/partitioners.py", "* (sizes < cap)", "* (sizes <= cap)", "scenario/test_partition.py"),
    Mutant("scenario/partitioners.py", "idx[len(idx) - left + j])", "idx[j])", "scenario/test_partition.py"),
    Mutant(
        "scenario/partitioners.py",
        "weight[some] / weight[some].sum()",
        "np.full(len(some), 1 / len(some))",
        "scenario/test_partition.py",
    ),
    Mutant("data/batching.py", "1 / (255 * s)", "1 / (256 * s)", "data/test_batching.py"),
    # engine, core
    Mutant(
        "engine/server.py",
        "cohort.weights / share",
        "cohort.weights * share",
        "engine/test_trust.py engine/test_faults.py engine/test_outcome.py",
    ),
    Mutant("ops/pooling.py", "_weights(how, 1 / share)", "_weights(how, share)", "ops/test_pooling.py"),
)


def unclear(mutant: Mutant) -> str | None:
    """Why a mistake cannot be made as it is written: its line was changed since, or a test file was moved."""
    count = (ROOT / "flray" / mutant.file).read_text().count(mutant.old)
    if count != 1:
        return f"flray/{mutant.file}: {mutant.old!r} stands {count} times, not once"
    gone = [test for test in mutant.tests.split() if not (ROOT / "tests" / test).is_file()]
    return f"tests/{gone[0]} is not there" if gone else None


def verdict(mutant: Mutant, copy: Path) -> str:
    """`caught` if a test fails with the mistake in the `copy` of the repository, which is restored afterwards."""
    file = copy / "flray" / mutant.file
    right = file.read_text()
    file.write_text(right.replace(mutant.old, mutant.new))
    try:
        child = os.fork()
        if child == 0:
            _run_tests(mutant, copy)
        code = _exit_code(child)
    finally:
        file.write_text(right)
    if code not in (0, 1, None):  # 1: tests failed; anything else says nothing about the mistake
        raise SystemExit((copy / "output.txt").read_text())
    return {0: "MISSED", 1: "caught", None: "TIME UP"}[code]


def _run_tests(mutant: Mutant, copy: Path) -> NoReturn:
    """In the fork: run the tests from `copy` and end the process with pytest's status. A test that hangs fails."""
    os.setsid()
    os.chdir(copy)
    with open("output.txt", "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ["PYTHONPATH"] = str(copy)
    sys.path[:] = [str(copy), *(path for path in sys.path if path not in ("", str(ROOT)))]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    sys.dont_write_bytecode = True  # a mistake may leave the size and the date of its file as they were
    tests = [f"tests/{test}" for test in mutant.tests.split()]
    os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-o", "timeout=60", "-k", mutant.only, *tests]))


def _exit_code(child: int) -> int | None:
    """Of the process; None if it was killed after `LIMIT_S` seconds."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def main(numbers: list[str]) -> int:
    chosen = [int(number) for number in numbers] or range(len(MUTANTS))
    caught = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "flray"
        shutil.copytree(
            ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", "runs", "__pycache__", ".*_cache")
        )
        for number in chosen:
            mutant = MUTANTS[number]
            if problem := unclear(mutant):
                raise SystemExit(f"mutant {number}: {problem}")
            begin = time.monotonic()
            found = verdict(mutant, copy)
            caught += found == "caught"
            seconds = time.monotonic() - begin
            print(f"{number:2} {found} {seconds:4.0f} s  {mutant.file}: {mutant.old!r} -> {mutant.new!r}", flush=True)
    print(f"{caught} of {len(chosen)} mistakes were caught")
    return int(caught < len(chosen))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
