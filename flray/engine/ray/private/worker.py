"""`SOCKET MODULE python setup_worker.py default_worker.py arguments`: a worker of Ray as a fork of a process that has
made its imports (`forked.Programs`), `MODULE` among them, which imports Ray.

Ray's own command runs it where no such process answers, where Python has options, and where it has a runtime
environment, unless that is of variables alone which no import reads: Ray Tune gives its trials such a one. Started with
`-I -S`: it imports nothing but modules of Python's own.
"""

import json
import os
import resource
import signal
import socket
import sys
from pathlib import Path

ANSWER_S = 30.0  # for the imports; Ray gives a worker 60 s
CONTEXT = "--serialized-runtime-env-context"
KEYS = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SECURITY_TOKEN", "SESSION_TOKEN")
UNREAD = {"PL_DISABLE_FORK", *(f"AWS_{key}" for key in KEYS)}  # by the imports; a fork imports Ray with its own RAY_...


def _fork(path: str, module: str, argv: list[str], environ: dict[str, str]) -> int | None:
    """The exit status of the program; None: nobody answered, and it did not begin."""
    try:
        asked = {
            "argv": argv,
            "environ": environ,
            "module": module,
            "settings": sorted(each for each in environ.items() if each[0].startswith("RAY_")),
            "nofile": resource.getrlimit(resource.RLIMIT_NOFILE),
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "blocked": list(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
            "oom_score_adj": Path("/proc/self/oom_score_adj").read_text(),
        }
        described = os.memfd_create("program")
        with os.fdopen(os.dup(described), "w") as file:
            json.dump(asked, file)
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(ANSWER_S)
        connection.connect(path)
        here = os.open(".", os.O_PATH)
        socket.send_fds(connection, [b"program"], [0, 1, 2, described, here])
        answers = connection.makefile()
        if not answers.readline():
            return None
        connection.settimeout(None)
    except OSError:
        return None
    status = int(answers.read() or 1)
    return 128 - status if status < 0 else status


def _plain(python: str, words: list[str]) -> tuple[list[str], dict[str, str]] | None:
    """(Ray's `default_worker.py` and its arguments, further variables of its environment) as Ray's `setup_worker.py`
    runs it; None: it would do more."""
    setup, program, *arguments = words
    if os.path.basename(setup) != "setup_worker.py" or program.startswith("-") or CONTEXT in arguments:
        return None
    variables: dict[str, str] = {}
    try:
        for word in arguments:
            if word.startswith(CONTEXT):
                context = json.loads(word.partition("=")[2])
                variables = context.pop("env_vars", None) or {}
                if context.pop("py_executable", None) not in (None, python) or any(context.values()):
                    return None
        if any("$" in value or not (name.startswith("RAY_") or name in UNREAD) for name, value in variables.items()):
            return None
    except (AttributeError, TypeError, ValueError):  # of another Ray
        return None
    return [program, *(word for word in arguments if not word.startswith(("--language=", CONTEXT)))], variables


if __name__ == "__main__":
    path, module, python, *words = sys.argv[1:]
    plain, status = _plain(python, words), None
    if plain is not None:
        program, variables = plain
        status = _fork(path, module, program, {**os.environ, **variables})
    if status is None:
        os.execv(python, [python, *words])
    sys.exit(status)
