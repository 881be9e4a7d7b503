"""A module of a user's that sets, when it is imported, what is the whole process's."""

import torch

torch.set_default_dtype(torch.float64)
torch.set_default_device("cpu")
torch.set_flush_denormal(True)
torch._C._set_mkldnn_enabled(False)
