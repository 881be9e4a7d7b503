"""The engine on Ray: actors, the pool that keeps them at work, the cluster. The only home of `import ray` in flray."""

import logging
import os
import warnings
from typing import Any

from flray.engine.threads import spin_briefly

# before ray is imported
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray runs its workers at nice 15 otherwise
os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # the round loop raises a client's error once, as one message
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # before Ray 2.55: no line about what will change
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # `data.root` and `model.weights` of a trial may be relative
spin_briefly()

# in a notebook every import of Ray asks for ipywidgets, for bars and tables of its own, which flray does not use
logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)
warnings.filterwarnings("ignore", message="IProgress not found")

# what Ray hands out, by types that differ between its versions
Actor = Any  # a handle of an actor
Ref = Any  # a reference to a result
