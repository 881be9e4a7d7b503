"""`agent.py RAYS_AGENT.py arguments`: a node's agent as Ray has it where it is installed without its extra `default`.

With the extra it imports what serves people for longer than it needs for all else, and a raylet waits for it.
"""

import os
import runpy
import sys

OPTIONAL = ("aiohttp", "opencensus", "opentelemetry", "prometheus_client", "pydantic", "smart_open")

if __name__ == "__main__":
    sys.modules.update(dict.fromkeys(OPTIONAL))  # type: ignore[arg-type]  # importing one says that it is not there
    del sys.argv[0]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
