"""The engine on Ray: actors, the pool that keeps them at work, the cluster. The only home of `import ray` in flray."""

import logging
import warnings
from typing import Any

# in a notebook every import of Ray asks for ipywidgets, for bars and tables of its own, which flray does not use
logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)
warnings.filterwarnings("ignore", message="IProgress not found")

# what Ray hands out, by types that differ between its versions
Actor = Any  # a handle of an actor
Ref = Any  # a reference to a result
