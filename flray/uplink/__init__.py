"""What happens to a client's update on its way to the server: the list `uplink` of a configuration, in its order.

Importing it imports no torch.
"""

from flray.uplink.chain import UPLINKS, Uplink
from flray.uplink.compressor import Compressor
from flray.uplink.quantize import Quantize
from flray.uplink.topk import TopK
from flray.uplink.transform import Received, Receiver, Sender, Sent, Transform

NONE = Uplink(())

__all__ = [
    "NONE",
    "UPLINKS",
    "Compressor",
    "Quantize",
    "Received",
    "Receiver",
    "Sender",
    "Sent",
    "TopK",
    "Transform",
    "Uplink",
]
