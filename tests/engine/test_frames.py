"""How far a debugger has to go from `flray run` to the gradient of a local step."""

import sys
from pathlib import Path

import torch

import flray
from flray.cli import app

ROOT = Path(flray.__file__).parent
SMALL = ["rounds=1", "resources.executor=local", "data.train_size=700", "partition.clients=6", "cohort.size=3", "-q"]


def test_a_gradient_is_14_frames_in_7_files_below_the_command(tmp_path, monkeypatch):
    """In round 1 the first one that is met: FLOPs are counted before the round."""
    grad, stacks = torch.autograd.grad, []

    def noted(*arguments, **options):
        frame, stack = sys._getframe(1), []
        while frame is not None:
            if Path(frame.f_code.co_filename).is_relative_to(ROOT):
                stack.append((frame.f_code.co_filename, frame.f_code.co_name))
            frame = frame.f_back
        stacks.append(stack[::-1])
        return grad(*arguments, **options)

    monkeypatch.setattr(torch.autograd, "grad", noted)
    app(
        ["run", str(ROOT.parent / "configs" / "quickstart.yaml"), *SMALL, "--out", str(tmp_path)], standalone_mode=False
    )
    trained = [stack for stack in stacks if "run_client" in [name for _, name in stack]]
    below = {tuple(stack[[name for _, name in stack].index("run") :]) for stack in trained}
    assert trained and all(len(stack) <= 14 and len({file for file, _ in stack}) <= 7 for stack in below), below
    counted = [stack for stack in stacks if "count_step_flops" in [name for _, name in stack]]
    assert not any("_transact" in [name for _, name in stack] for stack in counted[:1])
