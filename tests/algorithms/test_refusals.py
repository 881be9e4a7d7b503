"""What an algorithm cannot do is one line before the first round, which says what to write instead."""

import pytest
from torch import nn

from flray.algorithms.fedbabu import FedBABU
from flray.algorithms.fednova import FedNova
from flray.algorithms.fedpec import FedPEC
from flray.algorithms.fedproj import FedProj
from flray.algorithms.fedrcl import FedRCL
from flray.algorithms.fedsam import FedSAM
from flray.algorithms.fedscr import FedSCR
from flray.algorithms.fedsol import FedSOL
from flray.algorithms.glfc import GLFC
from flray.algorithms.lga import LGA
from flray.algorithms.local import Local
from flray.algorithms.target import Target
from flray.core.messages import Batch
from flray.core.network.objective import Objective
from flray.core.protocol.inputs import Inputs
from flray.core.schema.errors import ConfigError
from flray.models.mlp import MLP
from tests.contracts.table import experiment
from tests.support.messages import assert_says
from tests.support.networks import Mlp, build, inputs
from tests.support.small_cases import ListProxy, context

LINEAR = nn.Linear(5, 3)
LEVELS = "at least one of the 2 levels"
LABELS = "no labels of the private classes"
NO_RULE = "has no update rule; use proximal: kl"
HEADLESS = "declares no trainable `head`"
TEXTS, FEATURES = Inputs((12,), text=True), Inputs((4,))
IMAGES, TWO_LEVELS = Inputs((1, 4, 4), (0.4,), (0.3,)), MLP((5,), 3, hidden=(7, 4))
SVD = {"svd": "randomized", "criterion": "sigma_sum"}
DOMAINS = {"tasks": {"name": "domain_incremental", "num_tasks": 2, "domains": ["a", "b"]}}


def starts(algorithm, module=LINEAR):
    """What the server does first, with public data without labels."""
    objective = Objective(module)
    algorithm.init_server(context(objective, ListProxy(inputs(Mlp, 11)[0])), *objective.initial())


def steps(algorithm, module):
    objective = Objective(module)
    ctx = context(objective)
    algorithm.gradient(ctx, None, (), algorithm.local_state(ctx, *objective.initial()), Batch(*inputs(Mlp, 4)))


def projection(proximal):
    return FedSOL(proximal=proximal, strategy="projection")


def reads(algorithm, kind, module=LINEAR):
    """Networks for inputs of this kind."""
    algorithm.module(module, kind)
    algorithm.networks(module, kind)


# what is asked for -> the words of the refusal
REFUSED = {
    "fednova: momentum": (lambda: FedNova(mu=0.1), "set algorithm.momentum: 0,", "or algorithm.nova_compat: true"),
    "fedbabu: no head": (lambda: starts(FedBABU(), nn.Sequential(LINEAR)), "Sequential declares no `head`"),
    "fedsam: no head": (lambda: starts(FedSAM(perturb="head")), f"{HEADLESS}: perturb: head or body needs one"),
    "fedsol: no head": (lambda: starts(FedSOL()), HEADLESS),
    "fedsol: moon in the head": (lambda: FedSOL(proximal="moon"), "moon does not read the head"),
    "fedsol: scaffold": (lambda: projection("scaffold"), f"the state of scaffold {NO_RULE}"),
    "fedsol: fednova": (lambda: projection("fednova"), f"the state of fednova {NO_RULE}"),
    "fedsol: feddyn": (lambda: projection("feddyn"), f"the state of feddyn {NO_RULE}"),
    "fedrcl: level 2": (lambda: steps(FedRCL(levels=(0, 2)), TWO_LEVELS), LEVELS),
    "fedrcl: level -1": (lambda: steps(FedRCL(levels=(-1,)), TWO_LEVELS), LEVELS),
    "fedrcl: none": (lambda: steps(FedRCL(levels=()), TWO_LEVELS), LEVELS),
    "fedrcl: no levels": (lambda: steps(FedRCL(), build(Mlp)), "Mlp declares no levels"),
    "fedproj: round 0 by labels": (lambda: starts(FedProj(round0="ce_labels")), LABELS),
    "fedproj: memory by labels": (lambda: starts(FedProj(memory_loss="ce_labels")), LABELS),
    "fedproj: cost": (lambda: FedProj(memory_batch="full").step_cost(), "size", "algorithm.memory_size"),
    "fedpec: texts": (lambda: reads(FedPEC(), TEXTS), "students read images or feature vectors, the data are texts"),
    "target: texts": (lambda: reads(Target(), TEXTS), "Target makes images or feature vectors, the data are texts"),
    "fedscr: texts": (lambda: reads(FedSCR(), TEXTS, MLP((4,), 3)), "random views of images, the data are texts"),
    "fedscr: no head": (lambda: reads(FedSCR(), IMAGES, nn.Flatten()), "Flatten has no linear head"),
    "glfc: features": (lambda: reads(GLFC(), FEATURES), "glfc", "the data are feature vectors"),
    "glfc: texts": (lambda: reads(GLFC(), TEXTS), "glfc", "the data are texts"),
    "lga: features": (lambda: reads(LGA(), FEATURES), "lga", "the data are feature vectors"),
    "glfc: domains": (lambda: experiment("glfc", **DOMAINS), "glfc needs new classes in every task, domains bring"),
    "lga: domains": (lambda: experiment("lga", **DOMAINS), "lga needs new classes in every task, domains bring none"),
    "fedprotip: svd": (lambda: experiment("fedprotip", SVD), "algorithm.svd: criterion sigma_sum needs all singular"),
}


@pytest.mark.parametrize("asked", REFUSED)
def test_what_an_algorithm_cannot_do_is_refused(asked):
    ask, *words = REFUSED[asked]
    with pytest.raises(ConfigError) as refused:
        ask()
    assert_says(refused.value, *words)


@pytest.mark.parametrize("field", [{"weighting": "uniform"}, {"buffers": "keep"}])
def test_local_training_has_no_options_of_an_average(field):
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        Local(**field)


def test_what_is_near_a_refusal_is_no_error():
    assert FedSOL(proximal="moon", strategy="S4").step_cost() == pytest.approx(2 + 2 * 5 / 3)
    starts(FedSOL(perturb="all"))
