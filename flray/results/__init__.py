"""What came out of runs: tables of several, paired differences, figures."""

from flray.results.ablation_figures import ablation
from flray.results.by_mode import by_mode
from flray.results.client_figures import clients, timeline
from flray.results.continual_figures import accuracy_by_task, accuracy_through_drift, predicted_tasks
from flray.results.learning import curves
from flray.results.loss_surface import landscape
from flray.results.paired import paired
from flray.results.regions import decision_regions, film
from flray.results.rendering import Table, render, to_markdown
from flray.results.report_page import report
from flray.results.tables import compare, summary
from flray.results.targets import compare_at, compare_to

__all__ = [
    "Table",
    "ablation",
    "accuracy_by_task",
    "accuracy_through_drift",
    "by_mode",
    "clients",
    "compare",
    "compare_at",
    "compare_to",
    "curves",
    "decision_regions",
    "film",
    "landscape",
    "paired",
    "predicted_tasks",
    "render",
    "report",
    "summary",
    "timeline",
    "to_markdown",
]
