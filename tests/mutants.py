"""Do the tests notice when the maths is wrong? `python -m tests.mutants [NUMBER ...]` makes small mistakes in a copy of
flray, one at a time: a sign, a weight, an index, one too many or too few.

For each mistake the tests named beside it run, the fast ones only, for at most `LIMIT_S` seconds, and at least one must
fail. The last line counts those that were caught; the exit status is 1 if one was not. Tests run in a fork that has
torch and pytest loaded, which takes about 20 minutes on one core.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path, PurePosixPath
from typing import NamedTuple, NoReturn

import hypothesis  # noqa: F401  loaded once, for all forks
import pandas  # noqa: F401
import pytest
import torch  # noqa: F401

ROOT = Path(__file__).parents[1]
LIMIT_S = 300.0  # of one mistake's tests


class Mutant(NamedTuple):
    """`old`, which stands once in `file`, becomes `new`; `tests` should notice, those whose names have `only`. Without
    `tests` it is the file that mirrors `file`."""

    file: str
    old: str
    new: str
    tests: str = ""
    only: str = ""

    @property
    def files(self) -> list[str]:
        """Of the tests, below `tests/`."""
        place = PurePosixPath(self.file.removeprefix("../"))
        return self.tests.split() or [str(place.with_name(f"test_{place.name}"))]


MUTANTS = (
    # ops: projection, perturbation, subspaces
    Mutant("ops/project.py", "(q > delta) & (a < 0)", "(q > delta) & (a > 0)"),
    Mutant("ops/project.py", "g, g_mem, coefficient, value=-1", "g, g_mem, coefficient, value=1"),
    Mutant("ops/project.py", "ratio = a / (q + eps)", "ratio = a / (q - eps)"),
    Mutant("ops/project.py", "(dot(g, g) * q).sqrt()", "(dot(g, g) + q).sqrt()"),
    Mutant("ops/perturb.py", "factor = rho / (norm + eps)", "factor = rho * (norm + eps)"),
    Mutant("ops/perturb.py", "norm < min_norm, 0.0", "norm > min_norm, 0.0"),
    Mutant("ops/perturb.py", "out=out).add_(eta)", "out=out).sub_(eta)"),
    Mutant("ops/perturb.py", "out[s].sqrt_()", "out[s].sqrt()"),
    Mutant("ops/subspace.py", "a - basis @ (basis.T @ a)", "a + basis @ (basis.T @ a)"),
    Mutant("ops/subspace.py", "[: self.count])\n        self._keys", "[1 : self.count + 1])\n        self._keys"),
    Mutant("ops/subspace.py", "share = 0.0 if first else 1 -", "share = 0.0 if first else 0 -"),
    Mutant("ops/subspace.py", "            k *= 2", "            k *= 4"),
    # ops: sums, losses, optimisers
    Mutant("ops/average.py", "left.place // 2, value, None", "left.place // 2 + 1, value, None"),
    Mutant("ops/average.py", "alpha=1 if weight is None or weight == 1 else weight", "alpha=1"),
    Mutant("ops/average.py", "level=last.level + 1, place", "level=last.level + 2, place"),
    Mutant("ops/average.py", "[1.0 / count] * count", "[1.0] * count", "ops/test_average.py ops/test_pooling.py"),
    Mutant(
        "ops/losses.py",
        "torch.log_softmax(student / temperature, dim=1)\n    if",
        "torch.log_softmax(student, dim=1)\n    if",
    ),
    Mutant("ops/losses.py", "return temperature**2 * kl", "return temperature * kl"),
    Mutant("ops/losses.py", "place + (place >= y[:, None])", "place + (place > y[:, None])"),
    Mutant("ops/losses.py", "F.softplus(a - b)", "F.softplus(b - a)"),
    Mutant("ops/losses.py", 'if direction == "reverse"', 'if direction == "forward"'),
    Mutant("ops/optim.py", "1 - beta2 ** (moments.steps + 1)", "1 - beta2 ** moments.steps"),
    Mutant("ops/optim.py", "lerp_(g, 1 - beta1)", "lerp_(g, beta1)"),
    Mutant("ops/optim.py", "torch.add(g, moments.first, alpha=momentum", "torch.add(moments.first, g, alpha=momentum"),
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
    Mutant("ops/distill.py", "factor = temperature**2 if squared", "factor = temperature if squared"),
    Mutant("ops/distill.py", "mul_(2 * strength)", "mul_(strength)", "ops/test_distill.py algorithms/test_fedproj.py"),
    Mutant("ops/distill.py", "logits.div_(len(w))", "logits.div_(len(w) + 1)"),
    Mutant("ops/distill.py", "alpha=-rate)", "alpha=rate)"),
    Mutant(
        "ops/memory.py",
        "np.arange(step * size, (step + 1) * size)",
        "np.arange(step * size + 1, (step + 1) * size + 1)",
        "algorithms/test_fedproj.py",
    ),
    Mutant(
        "ops/memory.py", "g_mem.add_(g, alpha=len(piece) / len(chosen))", "g_mem.add_(g)", "algorithms/test_fedproj.py"
    ),
    Mutant("ops/detect.py", "apart**2 * count * n / (count + n)", "apart**2 * n / (count + n)"),
    Mutant("ops/detect.py", "for name in chosen) - noise", "for name in chosen) + noise"),
    Mutant("ops/detect.py", "return self.wv >= 0", "return True"),
    Mutant("ops/detect.py", "[-last:]", "[: last]"),
    # metrics
    Mutant("metrics/forgetting.py", "R[-1, :-1] - R.diagonal()[:-1]", "R.diagonal()[:-1] - R[-1, :-1]"),
    Mutant("metrics/forgetting.py", "R.diagonal(offset=1) - start[1 :", "R.diagonal(offset=1) - start[0 :"),
    Mutant("metrics/forgetting.py", "back[0] - (stop - 1)", "back[0] - stop"),
    Mutant("metrics/forgetting.py", "accuracies >= level - margin", "accuracies >= level + margin"),
    Mutant("metrics/classification.py", "np.add.accumulate(self.losses)[-1]", "np.add.accumulate(self.losses)[0]"),
    Mutant("metrics/classification.py", "int(np.nanargmin(accuracies))", "int(np.nanargmax(accuracies))"),
    Mutant("metrics/fairness.py", "- (count + 1) / count", "- (count - 1) / count"),
    Mutant("metrics/fairness.py", "np.argsort(-apart", "np.argsort(apart"),
    # aggregations
    Mutant("ops/robust.py", "drop : len(vectors) - drop]", "drop : len(vectors)]", "aggregations/test_rules.py"),
    Mutant("ops/robust.py", "max(K - faulty - 2, 1)", "max(K - faulty - 1, 1)", "aggregations/test_rules.py"),
    Mutant(
        "ops/robust.py",
        "weights / distances.clamp_min(nu)",
        "weights * distances.clamp_min(nu)",
        "aggregations/test_rules.py",
    ),
    Mutant("aggregations/median.py", "(len(updates.w) - 1) // 2", "len(updates.w) // 3", "aggregations/test_rules.py"),
    Mutant(
        "aggregations/krum.py", "scores(updates).argmin()", "scores(updates).argmax()", "aggregations/test_rules.py"
    ),
    Mutant("aggregations/multi_krum.py", "K - floor_share(self.faulty, K) if", "K if", "aggregations/test_rules.py"),
    Mutant(
        "aggregations/geometric_median.py",
        "tree_mean(updates.b, beta)",
        "tree_mean(updates.b, cohort.weights)",
        "aggregations/test_rules.py",
    ),
    Mutant(
        "aggregations/server_optimizer.py",
        "delta, 1 - self.beta_1",
        "delta, self.beta_1",
        "algorithms/test_fedopt.py",
    ),
    Mutant(
        "core/protocol/aggregation_section.py",
        'rules == "any" or self.linear',
        'rules != "own" or self.linear',
        "contracts/test_aggregations.py",
        "misfit",
    ),
    Mutant(
        "algorithms/fedavg.py",
        'rule=sendable(after.own, combine, "state")',
        "rule=state.rule",
        "algorithms/test_fedopt.py",
    ),
    # algorithms
    Mutant(
        "algorithms/fedavg.py",
        "self.lr * self.lr_decay**ctx.clock.round",
        "self.lr * self.lr_decay ** (ctx.clock.round + 1)",
    ),
    Mutant(
        "algorithms/fedavg.py",
        "alpha=-self.learning_rate(ctx))\n        return",
        "alpha=self.learning_rate(ctx))\n        return",
    ),
    Mutant("algorithms/scaffold.py", "torch.sub(broadcast.c, client.c, out", "torch.sub(client.c, broadcast.c, out"),
    Mutant("algorithms/scaffold.py", "clients = ctx.population if", "clients = ctx.cohort_size if"),
    Mutant("algorithms/feddyn.py", "mean.w, h, alpha=1 / self.alpha", "mean.w, h, alpha=self.alpha"),
    Mutant("engine/captured.py", "if crossed else copies", "if False else copies"),
    Mutant("engine/captured.py", "key.append((type(part), tuple(below)))", "pass"),
    Mutant("engine/captured.py", "numbers[place] == value", "True"),
    Mutant("engine/captured.py", "received = self.kinds[0].tensors", "received = self.kinds[1].tensors"),
    Mutant("engine/captured.py", "if known else None", "if True else None"),
    Mutant("engine/captured.py", "        generators.restore()\n", ""),
    Mutant("engine/captured.py", "_same(getattr(ctx, name), value)", "True"),
    Mutant("engine/captured.py", "+ _all(scratch))\n        try", ")\n        try"),
    Mutant("algorithms/fedproj.py", "< self.projection_rate", "> self.projection_rate"),
    Mutant(
        "algorithms/fedprotip.py",
        "(self.eps + ctx.clock.task * self.delta_eps",
        "(self.eps - ctx.clock.task * self.delta_eps",
        "contracts/test_contracts.py algorithms/test_fedprotip.py",
        "fedprotip",
    ),
    Mutant("aggregations/fedmemo.py", "r0=self.r0 - 1", "r0=self.r0", "algorithms/test_fedmemo.py"),
    Mutant(
        "ops/proxy_step.py",
        "proxy_examples / (examples + proxy_examples)",
        "proxy_examples / examples",
        "ops/test_proxy_step.py algorithms/test_fedmemo.py",
    ),
    # command line
    Mutant("cli/arguments.py", 'value.rpartition(",")', 'value.partition(",")', "cli/test_begin.py", "completes"),
    Mutant("cli/arguments.py", 'source.name == "COMMANDLINE"', 'source.name != "COMMANDLINE"', "cli/test_messages.py"),
    Mutant("cli/begin.py", '-row["changed"]', 'row["changed"]', only="my_runs"),
    Mutant("cli/__init__.py", "            _exit(2)", "            _exit(1)", "cli/test_exit.py", "full_disk"),
    Mutant("cli/interrupts.py", "else 128 + number", "else 127 + number", "cli/test_cli.py", "signal"),
    Mutant("core/schema/plain.py", "not math.isfinite(value)", "math.isnan(value)", "cli/test_output.py", "no_nan"),
    Mutant("cli/runs.py", "experiment.rounds * getattr", "experiment.rounds + getattr", "cli/test_pretrain.py", "card"),
    Mutant("running.py", "num_cpus <= cores()", "num_cpus >= cores()", "cli/test_cli.py", "starts_early"),
    Mutant("api.py", "len(cells) == 1 and starts_ray", "len(cells) == 1 and not starts_ray", only="torch"),
    Mutant("cli/catalog.py", 'places[row["group"]]', '-places[row["group"]]', only="group"),
    Mutant("doctor.py", "sizes.broadcast * drawn", "sizes.broadcast + drawn", "cli/test_cli.py", "travels"),
    Mutant("planning.py", "sum(times) * threads / cores()", "sum(times) / threads"),
    Mutant("planning.py", "sent + own * served", "sent + own"),
    Mutant("planning.py", "sizes.broadcast * sum(map(bool, nodes[1:]))", "sizes.broadcast"),
    # benchmarks, texts of a language model
    Mutant("bench/bare.py", "sizes / sizes.sum()", "sizes / sizes.max()", "bench/test_bench.py", "same_weights"),
    Mutant("bench/__init__.py", "in chosen[i:])", "in chosen[i + 1 :])", "bench/test_bench.py", "display"),
    Mutant(
        "bench/processes.py", 'total += values["Pss"]', 'total += values["Pss_Anon"]', "bench/test_bench.py", "memory"
    ),
    Mutant(
        "synthesis/language_model.py", "scores < 0, scores * a", "scores > 0, scores * a", "synthesis/test_decoding.py"
    ),
    Mutant(
        "synthesis/language_model.py", "values / temperature + noise", "values + noise", "synthesis/test_decoding.py"
    ),
    Mutant(
        "synthesis/texts.py",
        "max(ends) if template.longest else min(ends)",
        "min(ends) if template.longest else max(ends)",
    ),
    Mutant("synthesis/selection.py", "[-sample.score for", "[sample.score for"),
    Mutant("ops/drifting_lda.py", "a.T @ scatter @ a + residuals", "scatter + residuals"),
    Mutant("ops/drifting_lda.py", "PENALTY * old", "10 * PENALTY * old"),
    Mutant("ops/drifting_lda.py", "within = new - mu.T @ sums", "within = new"),
    Mutant("algorithms/fedprotip.py", "old=(state.w, state.b)", "old=state.old"),
    Mutant("algorithms/fedprotip.py", ".clamp(min=-1e4)", ""),
    Mutant("algorithms/der.py", '"train_frozen" if', '"eval" if', "algorithms/test_replay.py"),
    # rundir
    Mutant(
        "rundir/provenance.py",
        "in dict.fromkeys(changed.values()):",
        "in ():",
        "engine/test_arithmetic.py",
    ),
    Mutant("rundir/recorder.py", "if value <= last.order}", "if value < last.order}"),
    Mutant("rundir/checkpoint.py", "checkpoints(folder)[:-last]", "checkpoints(folder)[: 1 - last]"),
    Mutant(
        "rundir/client_store.py",
        "client, self._index.get(client))\n            self._note",
        "client, None)\n            self._note",
    ),
    Mutant("rundir/client_store.py", "== files).all(axis=1)", "== files).any(axis=1)"),
    Mutant("rundir/lock.py", "return age < STALE_S", "return age > STALE_S"),
    Mutant("rundir/lock.py", "present is None or present.id != id", "present is None"),
    Mutant("rundir/swap.py", 'if role(path, target) == "old"]', 'if role(path, target) == "new"]'),
    Mutant("rundir/parts.py", "if n + 1 not in known", "if n - 1 not in known"),
    Mutant("rundir/storage.py", "if done < newest:", "if done > newest:"),
    Mutant("rundir/storage.py", "if self._uploaded.get(name) != stamp", "if name not in self._uploaded"),
    Mutant("rundir/trackers.py", "if done > self._last:", "if done >= self._last:"),
    # config
    Mutant("config/overrides.py", "range(low, high + 1)", "range(low, high)", "config/test_loader.py"),
    Mutant("config/resolve.py", "in (*names, *joint)]", "in (*joint, *names)]", "config/test_loader.py"),
    Mutant(
        "config/resolve.py",
        "_drop(entry, option)",
        "_drop(entry, section)",
        "tuning/test_config.py tuning/test_space.py",
    ),
    Mutant("config/resolve.py", "k in old and section == ", "k in old and section != ", "config/test_loader.py"),
    Mutant("config/read.py", "layers.insert(0, values)", "layers.append(values)", "config/test_loader.py"),
    Mutant("config/grid.py", "len(set(exact)) < len(exact)", "len(set(exact)) > len(exact)"),
    Mutant("config/grid.py", "prefix or key not in RESUMABLE", "True", "rundir/test_storage.py"),
    Mutant("config/grid.py", "if len(ones) > 1}", "if len(ones) > 2}", "config/test_list_grid.py"),
    Mutant(
        "config/overrides.py", "least = 1 if levels is None", "least = 2 if levels is None", "config/test_list_grid.py"
    ),
    Mutant("config/overrides.py", "if section and not levels:", "if section and levels:", "config/test_list_grid.py"),
    Mutant("config/declared.py", "vars(sys.modules[package]).pop(own, None)", "pass", only="seen_a"),
    Mutant("config/schedule.py", '"lr_decay"] ** rounds', '"lr_decay"] ** (rounds + 1)', "engine/test_midrun.py"),
    Mutant("config/experiment.py", "(round + 1) % self.every == 0", "round % self.every == 0", "config/test_loader.py"),
    # core
    Mutant("core/protocol/seeding.py", '"little")', '"big")'),
    Mutant(
        "core/protocol/seeding.py",
        "outermost = _turn, not _mine.depth",
        "outermost = _turn, False",
        "core/protocol/test_generators.py",
    ),
    Mutant(
        "core/protocol/seeding.py",
        "before, _mine.depth = _mine.depth, depth",
        "before, _mine.depth = _mine.depth, 0",
        "core/protocol/test_generators.py",
    ),
    Mutant("engine/replay.py", "run = compute(self.executor.client_threads, work)", "run = work()"),
    Mutant("rundir/folder.py", "or folder.absolute() in _named", "", only="at_once"),
    Mutant(
        "data/sources/columns.py",
        "rows=rows[keep]",
        "rows=None",
        "data/sources/test_columns.py data/sources/test_text.py",
    ),
    Mutant("core/protocol/clock.py", "len(PHASES) * self.done +", "self.done +"),
    Mutant("core/network/layout.py", "-(-numel // ALIGNMENT)", "(numel // ALIGNMENT)"),
    Mutant("core/network/layout.py", "permute(0, 3, 1, 2)", "permute(0, 3, 2, 1)"),
    Mutant("core/network/objective.py", "missed if self._missed is None else self._missed & missed", "missed"),
    Mutant("core/network/objective.py", "**self._rest, **{n: t.detach()", "**{n: t.detach()"),
    Mutant("core/messages/records.py", "1 if isinstance(leaf, bool) else 8", "8"),
    Mutant("core/messages/shared.py", "np.union1d(holding, receivers)", "receivers"),
    Mutant("core/messages/packed.py", "return tuple(_message(part", "return list(_message(part"),
    Mutant("core/schema/section.py", "isinstance(value, bool) else value", "value is None else value"),
    # tuning
    Mutant("../tuning/trials.py", "(values < row).any(axis=1)", "(values <= row).any(axis=1)", "tuning/test_report.py"),
    Mutant("../tuning/schedulers.py", "(1 - 1 / self._reduction)", "(1 / self._reduction)"),
    Mutant("../tuning/schedulers.py", "if not at or key in values", "if not at"),
    Mutant("../tuning/schedulers.py", "first < at < now", "at < now", only="virtual"),
    Mutant("../tuning/schedulers.py", "reached = value if there", "reached = value if now"),
    Mutant("engine/forked.py", "self._ready.close()", "os.close(self._ready.fileno())", only="child_has"),
    Mutant("engine/forked.py", "torch.default_generator.seed()", "pass"),
    Mutant("engine/ray/private/worker.py", " or any(context.values())", "", only="plain"),
    Mutant("engine/ray/private/worker.py", '"$" in value or', "", only="plain"),
    Mutant("engine/forked.py", "os.fchdir(folder)", "pass", "engine/ray/private/test_worker.py", "as_the_program"),
    Mutant("../tuning/schedulers.py", "at *= rule.reduction", "at += rule.reduction"),
    Mutant(
        "../tuning/studies.py",
        '"reused" not in other.user_attrs and _configuration(other) == configuration',
        "True",
        "tuning/test_reuse.py tuning/test_studies.py",
    ),
    Mutant("../tuning/studies.py", 'journal, text.rfind(b"\\n") + 1', "journal, len(text)"),
    Mutant("../tuning/studies.py", "study.study_name, len(self.counted(group))", "study.study_name, 0"),
    Mutant("../tuning/beginning.py", 'inner != "resources.store"', 'inner != ""'),
    Mutant(
        "../tuning/domain.py",
        "self.low <= stored <= self.high",
        "self.low < stored",
        "tuning/test_space.py tuning/test_domain.py",
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
    Mutant("data/batching.py", "1 / (255 * s)", "1 / (256 * s)"),
    # data
    Mutant(
        "data/class_names.py",
        "place for place, name in enumerate(classes)}",
        "place for place, name in enumerate(sorted(classes))}",
        "data/test_class_names.py data/sources/test_objects.py",
    ),
    Mutant("data/draws.py", "(classes, -(exact - quota))", "(classes, exact - quota)"),
    Mutant("data/augment.py", "2 * (size - 1) - i", "2 * size - 1 - i", "data/test_batching.py"),
    Mutant("data/batching.py", "(at < last)", "(at <= last)"),
    Mutant("data/dataset.py", "[0.299, 0.587, 0.114]", "[0.299, 0.114, 0.587]"),
    Mutant(
        "data/proxy.py",
        "np.setdiff1d(np.arange(n), rows)",
        "np.arange(n)",
        "data/test_dataset.py",
    ),
    Mutant(
        "data/sources/arrays.py",
        "(first in FEW) != (last in FEW)",
        "(first in FEW) == (last in FEW)",
        "data/sources/test_layout.py",
    ),
    Mutant("data/sources/columns.py", "(values < 0) |", "(values < -1) |", "data/test_dataset.py"),
    Mutant("data/sources/float32.py", "/ 1000)", "* 1000)", "data/sources/test_choice.py"),
    Mutant("data/sources/pictures.py", "    if upright and", "    if not upright and"),
    Mutant("data/sources/leaf.py", "np.rint(part * 255)", "np.rint(part * 254)"),
    Mutant("data/sources/text.py", '"longest_first"', '"only_first"'),
    Mutant("data/sources/union.py", "np.repeat(np.arange(len(splits)),", "np.repeat(np.zeros(len(splits), int),"),
    # models
    Mutant("models/build.py", "seed_globals(seed)", "seed_globals(0)", "models/test_model_config.py"),
    Mutant("models/sl_vit.py", "(itself, -torch.inf)", "(itself, 0.0)", "models/test_models.py"),
    Mutant("models/resnet.py", "2 if stage and not block else 1", "2 if stage else 1", "models/test_models.py"),
    Mutant("models/t5.py", "others * -ELSEWHERE", "others * ELSEWHERE"),
    Mutant("models/fitted.py", "in_channels != channels", "in_channels == channels", "models/test_libraries.py"),
    Mutant("models/weights.py", "before[kind][0] > numbers", "before[kind][0] < numbers"),
    Mutant("models/weights.py", "not in (None, _checksum(", "in (None, _checksum("),
    Mutant("models/build.py", "        if start < end:", "        if start > end:", "models/test_frozen.py"),
    # scenario
    Mutant("scenario/drift.py", "(round - self.from_round)", "(round - self.from_round + 1)"),
    Mutant("scenario/drift.py", "int(share * count + 1e-9)", "int(share * count)"),
    Mutant("scenario/held_out.py", "LEAST * left < of", "LEAST * left < 0"),
    Mutant(
        "scenario/partitioners.py",
        "np.sqrt(sizes) / np.sqrt(sizes).sum()",
        "sizes / sizes.sum()",
        "scenario/test_by_source.py",
    ),
    Mutant("scenario/partitioners.py", "last + 1 == clients", "last == clients", "scenario/test_partition.py"),
    Mutant(
        "scenario/partitioners.py",
        "last < clients if written",
        "last <= clients if written",
        "scenario/test_client_csv.py",
    ),
    Mutant("data/proxy.py", "if count > most >= counts", "if most >= counts", "data/test_public_tables.py"),
    Mutant("data/proxy.py", "projected(public.train.x, fit)", "public.train.x", "data/test_public_tables.py"),
    Mutant(
        "data/splits.py", "tuple(names) != tuple(others)", "set(names) != set(others)", "data/test_public_tables.py"
    ),
    Mutant("engine/trial.py", "if not _near(*pair)]", "if not place and not _near(*pair)]"),
    Mutant(
        "engine/trial.py",
        "stale, evaluated = logits(own, False)",
        "stale, evaluated = logits(others, False)",
        only="KeyedCache",
    ),
    Mutant("engine/trial.py", "logits(others, True)", "logits(own, True)", only="DataTeacher"),
    Mutant("engine/trial.py", "passed(7)", "passed(0)", only="CountingNorm"),
    Mutant("engine/trial.py", "self._content(p) != self._contents[name]", "False", only="DataWrite"),
    Mutant("rundir/provenance.py", "refused = [name for name in what if name != SCRIPT]", "refused = []"),
    Mutant("rundir/main_code.py", "read[name] = cell.cell_contents", "pass", "rundir/test_provenance.py"),
    Mutant(
        "rundir/main_code.py",
        "(function.__defaults__, function.__kwdefaults__)",
        "function.__defaults__",
        "rundir/test_provenance.py",
    ),
    Mutant("rundir/main_code.py", "yield array_checksum(value)", "pass", "rundir/test_provenance.py"),
    Mutant("rundir/main_code.py", "if id(value) in self._filled:", "if False:", "rundir/test_provenance.py"),
    Mutant("rundir/main_code.py", "read.pop(one.argval, None)", "pass", "rundir/test_provenance.py"),
    Mutant("rundir/main_code.py", "self.modules.add(function.__module__)", "pass", "rundir/test_provenance.py"),
    Mutant("engine/server.py", "not all(map(_equal, tested, model))", "False", "engine/test_own_slips.py"),
    Mutant(
        "reference/evidence_page.py", "gains[1][seed] - gains[0][seed]", "gains[1][seed]", "reference/test_evidence.py"
    ),
    Mutant(
        "reference/evidence_page.py",
        "all(each.verdict == verdict",
        "any(each.verdict == each.verdict",
        "reference/test_evidence.py",
    ),
    Mutant("reference/evidence.py", "own[key] != defaults.get(key) or key == RULE", "True"),
    Mutant(
        "data/sources/arrays.py",
        'np.char.strip(values) == ""',
        'values == ""',
        "data/sources/test_script_values.py",
    ),
    Mutant("data/sources/arrays.py", "or index.equals(other)", "or True", "data/sources/test_script_values.py"),
    Mutant("scenario/tables.py", "numbers.min() == 0", "numbers.min() == 1", "scenario/test_listed.py"),
    Mutant("scenario/partitioners.py", "(times > 1).any()", "(times > 2).any()", "scenario/test_client_csv.py"),
    Mutant("scenario/tasks.py", "size * counts //", "(size + 1) * counts //", "scenario/test_local_test.py"),
    Mutant("scenario/tasks.py", "RandomState(PYCIL)", "RandomState(PYCIL + 1)"),
    # diagnostics
    Mutant("metrics/theory.py", "** 2 / 8", "** 2 / 4", "metrics/test_theory.py metrics/test_memory_drift.py"),
    Mutant("metrics/detection.py", "prepend=0) > 0", "prepend=0) != 0"),
    Mutant("metrics/divergence.py", "2 * (p @ d**2", "1 * (p @ d**2"),
    Mutant("metrics/landscape.py", "(norms[0] / norms[1])", "(norms[1] / norms[0])", "metrics/test_loss_plane.py"),
    Mutant("metrics/local_forgetting.py", "(1 - share)[tested]", "share[tested]"),
    Mutant(
        "metrics/latent_forgetting.py", "cumsum(1) < chance[i]", "cumsum(1) > chance[i]", "metrics/test_gradients.py"
    ),
    # engine, core
    Mutant(
        "engine/server.py",
        "cohort.weights / share",
        "cohort.weights * share",
        "engine/test_trust.py engine/test_faults.py engine/test_outcome.py",
    ),
    Mutant("ops/pooling.py", "rule), 1 / share)", "rule), share)"),
    Mutant("engine/counts.py", "ends[-1] * np.arange", "ends[0] * np.arange"),
    Mutant("engine/cohort.py", "middles = ends - np.asarray(costs) / 2", "middles = ends"),
    Mutant("engine/cohort.py", ">= config.dropout", "<= config.dropout", "engine/test_dropout.py"),
    Mutant("engine/summary.py", "accuracy > 1.05 * chance", "accuracy > 0.5 * chance", "engine/test_outcome.py"),
    Mutant("uplink/travel.py", "residual[name] = x - read", "residual[name] = x"),
    Mutant("engine/flops.py", "most - example * read", "most - example * fewer"),
    Mutant("engine/health.py", "not math.isfinite(loss)", "math.isfinite(loss)"),
    Mutant("engine/learner.py", "loss.reshape(1)), size / count", "loss.reshape(1)), 1 / count"),
    Mutant(
        "engine/server.py",
        "self.client_store.rollback()",
        "self.client_store.commit()",
        "engine/test_server_half.py",
    ),
    Mutant("engine/rounds.py", "if size:", "if not size:", "uplink/test_travel.py"),
    Mutant("engine/ray/combiners.py", "first & -first or largest", "first & -first or 1"),
    # work that is begun before its plan is known
    Mutant("engine/ray/calls.py", " and begun.kind == plan.kind", "", "engine/ray/test_ahead.py", "another_kind"),
    Mutant("engine/ray/calls.py", " or self._combines(following)", "", "engine/ray/test_ahead.py", "combined"),
    Mutant(
        "engine/ray/pool.py", "and call.life == self._lives[call.actor]", "", "engine/ray/test_ahead.py", "restarted"
    ),
    Mutant("engine/ray/calls.py", "< len(reports)\n", "< 0\n", "engine/ray/test_ahead.py", "paused"),
    Mutant("engine/exchanges.py", "equal(_unnamed(self), _unnamed(other))", "self.clock == other.clock"),
    Mutant(
        "engine/exchanges.py",
        "equal(_unnamed(self), _unnamed(other))",
        "equal(_unnamed(self[:4]), _unnamed(other[:4]))",
        "engine/ray/test_ahead.py",
        "no_list",
    ),
    Mutant("engine/client.py", "wanted, self._read = self._read, False", "wanted = True", "engine/test_exchanges.py"),
    Mutant(
        "engine/client.py", "ready, self._ready = self._ready, None", "ready = self._ready", "engine/test_exchanges.py"
    ),
    Mutant("engine/exchanges.py", "self.uplink or self.even", "self.even", "engine/ray/test_ahead.py", "nobody_begins"),
    Mutant("engine/ray/capacity.py", "parts // each\n", "parts // each + 1\n"),
    # results
    Mutant("results/intervals.py", "t.ppf(0.975, n - 1)", "t.ppf(0.975, n)", "results/test_paired.py"),
    Mutant("results/paired.py", "tests - np.arange(p.shape[-1])", "tests - np.arange(p.shape[-1]) - 1"),
    Mutant("results/tables.py", '"seed", keep="last")', '"seed", keep="first")'),
    Mutant("results/ranks.py", "(count - 1) * statistic / rest", "count * statistic / rest"),
    Mutant("results/continual.py", "if window.start <= done < window.stop", "if window.start <= done <= window.stop"),
    Mutant("results/diagnoses.py", 'zeta=rows["zeta"] ** 2', 'zeta=rows["zeta"]'),
    Mutant("results/paper_tables.py", "half / 10**place < 2", "half / 10**place < 3"),
    Mutant("results/by_mode.py", 'rows[rows["done"] == end]', 'rows[rows["done"] <= end]', "results/test_fair.py"),
    Mutant(
        "results/answers.py",
        'holm(np.array([paired["p_t"] for paired in differences + others]))',
        'holm(np.array([paired["p_t"] for paired in differences]))',
        "results/test_report_page.py",
    ),
    Mutant("results/detectors.py", 'float(drifted["delay"].median())', 'float(drifted["delay"].mean())'),
    Mutant("results/learning.py", "if count >= FEW:", "if count > FEW:", "results/test_figures.py"),
    # reference
    Mutant("reference/verdict.py", "same = np.maximum(", "same = np.minimum("),
    Mutant("reference/verdict.py", "self.ours < 0 and self.holm < LEVEL", "self.ours < 0"),
    Mutant("reference/verdict.py", "LEVEL / len(judged_claims)", "LEVEL"),
    Mutant("reference/evidence.py", "sign = -1.0 if claim.lower else 1.0", "sign = 1.0"),
    Mutant(
        "reference/evidence.py", "len(seeds) < setting.seeds or diverged", "len(seeds) < setting.seeds and diverged"
    ),
    Mutant("reference/evidence.py", "if starts[0].get(s) == starts[1].get(s)", "if True"),
    Mutant(
        "reference/outcome.py",
        "(values.index < window.stop)",
        "(values.index <= window.stop)",
        "reference/test_moments.py",
    ),
    Mutant(
        "reference/plan.py",
        "grid[cell_run.place * seeds : (cell_run.place + 1) * seeds]",
        "grid[cell_run.place :: len(cell_run.line.rows)]",
        "reference/test_papers.py reference/test_outcome.py",
    ),
    Mutant(
        "reference/outcome.py",
        "unfinished = len(entries) - len(ours) - diverged",
        "unfinished = len(entries) - len(ours)",
    ),
    # uplink: what a client sends, noise, its account, attacks
    Mutant("uplink/clip.py", "x * (norm / length)", "x * (length / norm)", "uplink/test_transforms.py"),
    Mutant("uplink/clip.py", "-self.adaptive_lr * (share", "self.adaptive_lr * (share", "uplink/test_transforms.py"),
    Mutant("uplink/clip.py", "ones - 0.5 * mean.clients", "ones - mean.clients", "uplink/test_transforms.py"),
    Mutant("uplink/gaussian.py", "mean.clients / cohort", "1.0", "uplink/test_transforms.py"),
    Mutant("uplink/gaussian.py", "* norm / cohort", "* norm / mean.clients", "uplink/test_transforms.py"),
    Mutant("uplink/gaussian.py", "(2 * sigma) ** -2", "sigma**-2", "uplink/test_transforms.py"),
    Mutant("uplink/gaussian.py", "w=clipped(sent.w, sent.norm)", "w=sent.w", "uplink/test_transforms.py"),
    Mutant(
        "uplink/accountant.py",
        "middle, parts, delta) <= epsilon",
        "middle, parts, delta) >= epsilon",
        "uplink/test_private.py",
    ),
    Mutant("uplink/accountant.py", "_renyi(rate, noise) * rounds", "_renyi(rate, noise)", "uplink/test_private.py"),
    Mutant("uplink/chain.py", "if i < attack and", "if i > attack and", "uplink/test_transforms.py"),
    Mutant("uplink/chain.py", 'f"{name} {seen[name]}"', "name", "uplink/test_transforms.py"),
    Mutant("uplink/compressor.py", "residual = x - read", "residual = sent.w - read", "uplink/test_travel.py", "numpy"),
    Mutant("uplink/travel.py", 'values["b"] = broadcast.b + sent.b', 'values["b"] = sent.b', only="attack"),
    Mutant("uplink/fits.py", 'rule.pooled != "mean" or asks', "asks", "uplink/test_private.py", "refused"),
    Mutant("engine/cohort.py", "draws.binomial(count, size / count)", "size", "uplink/test_private.py", "poisson"),
    # the virtual clock: who works when, ages, deadlines, ends
    Mutant(
        "scenario/devices.py",
        "steps -= self.seconds(clients, steps, batches, work) > limit",
        "steps -= self.seconds(clients, steps, batches, work) >= limit",
        "engine/test_partial.py",
    ),
    Mutant(
        "scenario/devices.py",
        "steps += self.seconds(clients, steps + 1, batches, work) <= limit",
        "steps += 0",
        "engine/test_partial.py",
        "most",
    ),
    Mutant("engine/arrivals.py", "dropped + int(cut.sum())", "dropped", "engine/test_partial.py"),
    Mutant("engine/client.py", "if steps == ctx.steps_taken < ctx.num_steps:", "if False:", "engine/test_partial.py"),
    Mutant("engine/cohort.py", "taken.get(k, n)", "n", "engine/test_partial.py"),
    Mutant("engine/simulation.py", "seconds <= limit", "seconds < limit", "engine/test_until.py"),
    Mutant("engine/tickets.py", "> self._oldest", "> self._oldest + 1"),
    Mutant("engine/tickets.py", "self._now + seconds", "self._now + 2 * seconds"),
    Mutant("engine/tickets.py", "leaves < arrives", "leaves > arrives"),
    Mutant("engine/tickets.py", "self._seconds.clear()", "pass"),
    Mutant("engine/forked.py", "dict(os.environ)", "{}"),
    Mutant("engine/forked.py", "start_new_session=True", "start_new_session=False"),
    Mutant("ops/stale.py", "torch.sub(present, before[version], out=moved)", "moved.copy_(present)"),
    Mutant("ops/stale.py", "float(1 / (q / s).sum())", "float((q / s).sum())"),
    Mutant(
        "scenario/devices.py",
        "(ages + 1) ** -(self.a or 0.5)",
        "(ages + 1) ** -(self.a or 1)",
        "engine/test_buffered.py",
        "paper",
    ),
    Mutant("scenario/devices.py", "place -= place % 2", "place -= 0", "scenario/test_availability.py"),
    Mutant("engine/prepare.py", "np.argsort(-parts", "np.argsort(parts", "scenario/test_slow_classes.py"),
    Mutant("results/targets.py", "rounds[place <= value]", "rounds[place < value]"),
    Mutant("results/targets.py", "rounds[metric] >= value", "rounds[metric] > value"),
    Mutant("results/axes.py", "return place.cumsum()", "return place", "results/test_targets.py"),
    Mutant("engine/client.py", "self._rows | rows", "self._rows & rows", "engine/test_exchanges.py"),
    # what people bring, and what is said of their runs
    Mutant("engine/blame.py", "in {**before, **now}.items()", "in {}.items()", "engine/test_own_slips.py"),
    Mutant("engine/runtime.py", "if experiment.draws_among_all else 1.0", "if True else 1.0", "uplink/test_private.py"),
    Mutant("engine/runtime.py", "rounds[clock.task :] =", "rounds[: clock.task + 1] =", "uplink/test_private.py"),
    Mutant("engine/arrivals.py", "share is not None and lost.all()", "share is None", "engine/test_availability.py"),
    Mutant("scenario/devices.py", "within = np.isfinite(seconds)", "within = seconds > 0"),
    Mutant("results/axes.py", '["done"] + (tasks["phase"]', '["done"] - (tasks["phase"]', "results/test_targets.py"),
    Mutant("results/tables.py", "(*axis.columns, *axis.of_tasks) if", "axis.of_tasks if", "results/test_targets.py"),
    Mutant("results/ranks.py", 'for more in ([], ["name"]):', 'for more in (["name"],):'),
    Mutant("models/weights.py", "if isinstance(entry[0], Tensor)]", "]", "models/test_frozen.py"),
    Mutant("engine/client.py", "first <= place < first + size", "first < place < first", "engine/test_own_slips.py"),
    Mutant("uplink/chain.py", "if writes() != before:", "if writes() == []:", "engine/test_own_slips.py"),
    Mutant("uplink/chain.py", "if state_writes() != state_before:", "if False:", "uplink/test_transforms.py"),
    Mutant("core/network/objective.py", "if direct is not None:", "if direct is w:", "engine/test_own_slips.py"),
    Mutant("algorithms/fedavg.py", "out=None if has_own_gradient(type(self)) else", "out=", "engine/test_own_slips.py"),
    Mutant(
        "engine/trial.py",
        "p.requires_grad and id(p) not in",
        "p.requires_grad and id(p) in",
        "engine/test_own_slips.py",
    ),
    Mutant("core/schema/own.py", "if key not in self.read]", "if key in ()]", "engine/test_own_slips.py"),
    Mutant(
        "algorithms/scaffold.py",
        'if self.corrects == "weights":\n            after',
        'if self.option == "I":\n            after',
    ),
    Mutant(
        "aggregations/fedmemo.py",
        "if self.gamma is None else self.gamma",
        "if True else self.gamma",
        "algorithms/test_fedmemo.py",
        "gamma",
    ),
    Mutant("results/rendering.py", "if unit == text.split()[1:] else", "if unit else", "results/test_targets.py"),
    Mutant("results/report_page.py", '[frame["status"] == "finished"]', "[frame.index >= 0]", only="costs"),
    Mutant("results/figures.py", 'or run.status == "finished" or', "or True or", "results/test_paired.py", "repeat"),
    Mutant("results/targets.py", "place.iloc[-1] <= value", "place.iloc[-1] < value"),
    Mutant("../tuning/schedulers.py", "stop_last_trials=False", "stop_last_trials=True"),
    Mutant("../tuning/trials.py", "last.get(parameter, ", "trial.params.get(parameter, ", "tuning/test_report.py"),
    Mutant("../tuning/space.py", 'if prefix.startswith(f"{key}."):', "if not prefix:"),
    Mutant(
        "data/sources/readers.py",
        "if len(names) == 1 and mark in names[0]",
        "if len(names) == 0",
        "data/sources/test_single_file.py",
    ),
    Mutant("config/experiment.py", "and not same:", "and same is None:", "config/test_loader.py", "prepared"),
    Mutant(
        "reference/evidence.py",
        "if key in new and old[key] != new[key]",
        "if key not in new",
        only="another_configuration",
    ),
)


def unclear(mutant: Mutant) -> str | None:
    """Why a mistake cannot be made as it is written: its line was changed since, or a test file was moved."""
    count = (ROOT / "flray" / mutant.file).read_text().count(mutant.old)
    if count != 1:
        return f"flray/{mutant.file}: {mutant.old!r} stands {count} times, not once"
    gone = [test for test in mutant.files if not (ROOT / "tests" / test).is_file()]
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
    tests = [f"tests/{test}" for test in mutant.files]
    tests += ["-m", ""] if mutant.file.startswith("bench/") else []  # all of a benchmark's tests take minutes
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
