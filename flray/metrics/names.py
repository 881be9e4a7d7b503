"""The columns of a run's tables and their meanings, for `flray list metrics` and for the metric of a sweep."""

from __future__ import annotations

from collections.abc import Iterable

# computed from `tests/` when it is read; for the first inference mode, for another one as `ACC@task_aware`
OF_TASKS = ("ACC", "FT", "AIA", "BWT", "FWT", "task_prediction", "ACC_pooled", "FT_std")
OF_EXEMPLARS = ("exemplars/kept", "exemplars/bytes")  # samples of earlier tasks that an algorithm stores
OF_DRIFT = (
    "drift/acc_before", "drift/acc_end", "drift/acc_missing", "drift/acc_final", "drift/recovered_after",
    "drift/worst_drop",
)  # fmt: skip
OF_ALARMS = (  # each as `detect/f1@fedmemo`, with the detector: an algorithm's or a diagnostic's
    "detect/precision", "detect/recall", "detect/f1", "detect/f1_adjusted", "detect/delay", "detect/missed",
    "detect/on_before", "detect/false_alarms",
)  # fmt: skip
MODES = {  # of flray's algorithms: how a model predicts in a test
    "global": "among the classes of all tasks so far",
    "task_aware": "among the classes of the sample's task, which is given",
}
_DECIDES = {  # what predicts the task in `tip_sample`, `mean_batch` ...
    "tip": "the clients' vote on subspaces of features",
    "mean": "the nearest class mean",
    "lda": "the densest linear discriminant",
    "energy": "the head with the largest energy",
}
_READS = {"sample": "each sample", "batch": "a batch of one task", "window": "each sample and those before it"}
KNOWN_MODES = (*MODES, *(f"{by}_{of}" for by in _DECIDES for of in _READS))
LAST = 10  # tested rounds in the mean `test/acc_mean10`

# columns of rounds/, clients/ and tasks/ that the engine writes besides metrics
COLUMNS = {
    "done": "rounds over all tasks",
    "task": "the task, from 0",
    "round": "the round of the task, from 1",
    "phase": "clients/, tests/, tasks/, personal/: round, task_begin or task_end",
    "cohort_size": "sampled clients",
    "exchanges": "exchanges of the round, or of the task's beginning or end",
    "client": "clients/, personal/: the client's number",
    "exchange": "clients/: the exchange, from 0",
    "position": "clients/: the client's place in the cohort",
    "skipped": "clients/: whether its update was NaN or infinite",
    "num_examples": "clients/, personal/: samples that the client holds",
    "num_steps": "clients/: local steps that it took",
    "skipped_clients": "clients whose update was NaN or infinite, by number",
    "clients_empty": "clients of the cohort that hold no sample now (drift)",
    "time/task_begin_s": "tasks/: wall time of a task's beginning",
    "time/task_end_s": "tasks/: wall time of a task's end, tests included",
    "finetune_epochs": "personal/: epochs of fine-tuning",
    "num_test": "personal/: samples of the client's own test",
}
WRITTEN = {
    "test/acc": "accuracy of the global model on the test set, after the server half, in its first inference mode; by "
    "class: tests/",
    "test/acc_sources": "in a union of text: mean over its sets (tasks) of the accuracy on each test set, which "
    "tests/ has by name",
    "test/loss": "mean cross-entropy on the test set, over the samples whose label is in the head of the answer",
    "val/acc": "accuracy on held-out training data (evaluate.validation), instead of the test set",
    "val/loss": "mean cross-entropy on held-out training data",
    "client/acc_before": "accuracy of the broadcast model on the client's own training data, before local training; "
    "over tasks among the classes of all tasks so far",
    "client/acc_after": "the same after local training",
    "client/acc_p10": "10th percentile of client/acc_after over the cohort",
    "comm/up_bytes": "bytes of the tensors that clients sent, as they are encoded, over the cohort; not of updates "
    "that come too late or too old; a model is one vector, in which zeros fill each tensor up to a multiple of 16 "
    "entries",
    "comm/down_bytes": "bytes of the tensors that the server sent, over the cohort",
    "comm/up_bytes/FIELD": "the same of one field of what clients send (w, b, ...)",
    "comm/down_bytes/FIELD": "the same of one field of the broadcast; shared: parts that a client gets once",
    "client_steps": "local gradient steps, over the cohort",
    "client_flops": "FLOPs of these steps by torch's counter: forward and backward passes of `step` with all its extra "
    "passes (perturbation, memory, teacher), counted once for each kind of step; without element-wise operations, "
    "tests, a client's work before and after its steps, and the server",
    "examples_read": "clients/: samples that the local steps read, each time that they read it",
    "time/personal_s": "tasks/: the personalised test",
    "exchanges_skipped": "exchanges whose server half did not run: none of their clients held a sample, or had a state",
    "clients_skipped": "clients whose update was NaN or infinite (on_nonfinite: skip); skipped_clients names them",
    "clients_late": "sampled clients whose updates came too late, or after the first K (coordination)",
    "clients_lost": "clients that left before their update arrived (devices.availability, leaving: lose)",
    "clients_partial": "clients that stopped before the end of their work, to be in time (coordination.late: partial)",
    "clients_stale": "updates that were dropped because of their age (coordination.max_staleness)",
    "staleness": "clients/: age of the update, server steps since its broadcast (coordination: buffered)",
    "staleness_mean": "mean age of the updates of a server step",
    "staleness_max": "greatest age of the updates of a server step",
    "versions": "models that the server keeps for clients at work",
    "versions_bytes": "their bytes",
    "clients_dropped": "sampled clients that did not deliver (cohort.dropout)",
    "diverged": "a client's update or the global state holds a NaN or an infinity",
    "personal/ftE/acc_mean": "tasks/: accuracy of clients on their own test shares after E epochs of fine-tuning, mean "
    "over clients",
    "personal/ftE/acc_std": "tasks/: the same: standard deviation over clients (ddof 0)",
    "personal/ftE/acc_p10": "tasks/: the same: 10th percentile over clients",
    "personal/ftE/acc_worst": "tasks/: the same: the worst client",
    "personal/ftE/gini": "tasks/: the same: Gini coefficient over clients, 0 where all have the same accuracy",
    "kept/clients": "tasks/, for algorithms that store exemplars: clients with a state",
    "kept/client_bytes": "tasks/: bytes of the clients' states",
    "kept/samples": "tasks/: samples that clients store by number",
    "kept/sample_bytes": "tasks/: their size in the data set",
    "kept/server_bytes": "tasks/: bytes of the server's state besides the model",
    "time/round_s": "wall time of the round, testing included",
    "time/virtual_s": "virtual seconds from the first broadcast to the end of the round (devices)",
    "time/client_s": "sum of the clients' times, each on its own actor",
    "time/server_s": "aggregation and distillation",
    "time/evaluate_s": "testing the global model",
    "acc": "tests/: right / total, for each test set and inference mode; computed when the table is read, as the next "
    "three",
    "loss": "tests/: loss_sum / covered",
    "acc_macro": "tests/: mean of the classes' accuracies, each class with the same weight",
    "acc_worst": "tests/: accuracy of the worst class",
    "class_right": "tests/: right predictions by class",
    "class_total": "tests/: samples by class",
    "covered": "tests/: samples whose label is in the head of the answer",
    "loss_sum": "tests/: their summed cross-entropy",
    "predicted_tasks": "tests/: samples by predicted task, in modes that predict one",
    "ACC": "tests/: after the last task the mean over tasks of the accuracy on their test sets; as the next seven, of "
    "the first inference mode, and ACC@task_aware of another one",
    "ACC_pooled": "tests/: ACC over all test samples, each with the same weight, as in FedProTIP's code",
    "AIA": "tests/: average incremental accuracy, the mean over task ends of the mean accuracy on the tasks so far",
    "FT": "tests/: forgetting of FedProTIP, 1/T sum of best accuracy before the last task - accuracy after it",
    "FT_std": "tests/: FT divided by T - 1 (Chaudhry et al. 2018)",
    "BWT": "tests/: backward transfer, mean over earlier tasks of accuracy after the last task - after the task itself",
    "FWT": "tests/: forward transfer, mean of a task's accuracy just before it is learned - that of the initial model; "
    "0 in a mode whose answers never have a class of the next task",
    "task_prediction": "tests/: after the last task the share of test samples for which the right task was predicted",
    "exemplars/bytes": "tasks/: kept/sample_bytes of the last task's end",
    "drift/acc_before": "tests/: accuracy in the last test before the window of rounds in which data are missing; over "
    "tasks this, drift/acc_end and drift/acc_final are on the test sets of the tasks that had begun by that test",
    "drift/acc_end": "tests/: accuracy in the last test inside the window",
    "drift/acc_missing": "tests/: accuracy on the missing classes in the last test inside the window",
    "drift/acc_final": "tests/: accuracy in the last test of the run",
    "drift/recovered_after": "tests/: rounds from the window to the first test that is back within a point of "
    "drift/acc_before; 1: the first round with all data, inf: never",
    "detect/precision": "diagnostics/, rounds/: share of the rounds with an alarm of latent forgetting that lie in the "
    "window of the drift; as all detect/ columns by detector: detect/precision@fedmemo, its own, or "
    "@latent_forgetting, the diagnostic",
    "detect/recall": "diagnostics/, rounds/: share of the window's rounds that have an alarm",
    "detect/f1": "diagnostics/, rounds/: their harmonic mean",
    "detect/f1_adjusted": "diagnostics/, rounds/: the same, with an alarm that begins in the window in all its rounds",
    "detect/delay": "diagnostics/, rounds/: rounds from the window's start to the first alarm that begins in it; NaN: "
    "missed",
    "detect/on_before": "diagnostics/, rounds/: 1 if an alarm was on when the window began (it does not count), else 0",
    "detect/missed": "diagnostics/, rounds/: 1 if no alarm begins in the window, else 0",
    "detect/false_alarms": "diagnostics/, rounds/: share of the rounds outside of the window that have an alarm",
    "drift/worst_drop": "tests/: drift/acc_before - the lowest accuracy since the window began",
}
REPORTED = {  # by the algorithms themselves
    "train/loss": "mean of the local steps' losses, over clients by aggregation weight",
    "proxy_examples": "proxy samples that the server passed through a model",
    "project/share": "FedProj: share of local steps whose gradient was projected",
    "project/cosine": "FedProj: mean cosine of local and memory gradient before the projection",
    "memory/loss_first": "FedProj: L_mem on the first memory mini-batch of local training",
    "memory/loss_last": "FedProj: L_mem on the last one; the difference is what local training forgot",
    "memory/drift": "FedDF, FedProj: L_mem of the new global model against the round's ensemble, whole buffer, T = 1",
    "protected/LAYER": "FedProTIP, FOT, tasks/: share of a layer's input directions that are protected, q / d; at 1 "
    "its weights cannot change",
    "comm/bases_up_bytes": "FedProTIP, tasks/: bytes of the directions that clients sent (sequential: by client)",
    "comm/sketches_up_bytes": "FOT, tasks/: bytes of the sketches that clients sent",
    "comm/references_up_bytes": "FedProTIP, tasks/: bytes of the references that clients sent",
    "comm/block_bytes": "FedProTIP, FOT, tasks/: bytes of the task's block, which every client downloads once",
    "memo/wv": "FedMemo: variance of the clients' aggregated update, against the model that the round began with",
    "memo/smoothed": "FedMemo: its mean over m rounds (below memo/threshold: a hit), or another detector's score",
    "memo/reference": "FedMemo: mean of the detector's reference; cusum: forecast of WV; classes: expected in a cohort",
    "memo/threshold": "FedMemo: (1 - rho) times the reference; other detectors: score from which on there is a hit",
    "memo/vanished": "FedMemo, detector classes or both: each class's probability to be gone, 0 without a hit",
    "memo/alarm": "FedMemo: whether the detector has an alarm",
    "memo/active": "FedMemo: whether the round took step 2",
    "memo/gamma": "FedMemo: weight of the proxy model in step 2, N_p / (sum N_i + N_p)",
    "memo/proxy": "FedMemo: number of proxy samples N_p",
    "dp/epsilon": "uplink.gaussian: epsilon of the run so far at dp/delta (opacus, Renyi); where: client: of the "
    "clients' own noise",
    "dp/epsilon_if_poisson": "the same for cohorts of a fixed size, as if each client had been drawn independently",
    "dp/noise": "uplink.gaussian: z, the noise of the sum over the clipping norm",
    "clip/norm": "uplink.clip.adaptive: the clipping norm of this round; of a second adaptive clip `clip 2/norm`",
    "clip/within": "uplink.clip.adaptive: share of the updates within it, with noise where the server adds some",
    "dp/delta": "FedMemo: delta of the run",
    "dp/delta_round": "FedMemo: delta of one round",
    "dp/epsilon_round": "FedMemo: epsilon of this round alone, ln(1 + q (e^epsilon - 1)), at dp/delta_round",
    "exemplars/kept": "GLFC, LGA, tasks/: samples that the task's clients keep; flray compare has kept/samples of the "
    "last task's end, of all clients",
    "glfc/monitor_acc": "GLFC, LGA: accuracy of the global model on the reconstructed images (LGA: on noisy features)",
    "ewc/fisher_trace": "EWC, tasks/: trace of a client's Fisher diagonal",
    "fedcurv/fisher_trace": "FedCurv: trace of a client's Fisher diagonal",
    "lga/radius": "LGA, tasks/: rho, the spread of the first task's features",
    "ditto/personal_loss": "Ditto: mean loss of the local steps of the clients' own models v_k, without the pull",
    "distill/loss": "FedDF, FedET, FedProj: mean distillation loss on the server",
}
METRICS = WRITTEN | REPORTED

_FAMILIES = ("comm/up_bytes/", "comm/down_bytes/", "personal/ft", "kept/")


def reserved(name: str) -> bool:
    """Whether a column of rounds/, clients/ or tasks/ has this name, which a metric would replace."""
    return (
        name in COLUMNS or name.startswith(_FAMILIES) or (name in WRITTEN and not WRITTEN[name].startswith("tests/:"))
    )


def mode_words(modes: Iterable[str]) -> str:
    """How each of these inference modes predicts, `; ` between them; nothing for a single one or a user's own."""
    names = list(dict.fromkeys(map(str, modes)))
    known = {name: words for name in names if (words := mode_meaning(name))}
    return "; ".join(f"{name}: {words}" for name, words in known.items()) if len(names) > 1 else ""


def mode_meaning(mode: str) -> str:
    """How an inference mode of flray's algorithms predicts; empty for another name."""
    by, _, of = mode.partition("_")
    if by in _DECIDES and of in _READS:
        return f"the task of {_READS[of]} predicted by {_DECIDES[by]}"
    return MODES.get(mode, "")
