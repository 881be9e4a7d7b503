"""Messages between server and clients, and stored states, as values."""

from flray.core.messages.records import (
    Batch as Batch,
)
from flray.core.messages.records import (
    Broadcast as Broadcast,
)
from flray.core.messages.records import (
    ClientState as ClientState,
)
from flray.core.messages.records import (
    Cohort as Cohort,
)
from flray.core.messages.records import (
    EachUpdate as EachUpdate,
)
from flray.core.messages.records import (
    HasModel as HasModel,
)
from flray.core.messages.records import (
    LocalState as LocalState,
)
from flray.core.messages.records import (
    Message as Message,
)
from flray.core.messages.records import (
    Metrics as Metrics,
)
from flray.core.messages.records import (
    Models as Models,
)
from flray.core.messages.records import (
    Published as Published,
)
from flray.core.messages.records import (
    Record as Record,
)
from flray.core.messages.records import (
    ServerState as ServerState,
)
from flray.core.messages.records import (
    Streamed as Streamed,
)
from flray.core.messages.records import (
    StreamedModels as StreamedModels,
)
from flray.core.messages.records import (
    StreamedUpdate as StreamedUpdate,
)
from flray.core.messages.records import (
    Update as Update,
)
from flray.core.messages.records import (
    as_tensors as as_tensors,
)
from flray.core.messages.records import (
    children as children,
)
from flray.core.messages.records import (
    equal as equal,
)
from flray.core.messages.records import (
    is_none as is_none,
)
from flray.core.messages.records import (
    leaves as leaves,
)
from flray.core.messages.records import (
    map_tensors as map_tensors,
)
from flray.core.messages.records import (
    nbytes as nbytes,
)
from flray.core.messages.records import (
    nbytes_by_field as nbytes_by_field,
)
from flray.core.messages.records import (
    rebuilt as rebuilt,
)
from flray.core.messages.records import (
    sendable as sendable,
)
from flray.core.messages.records import (
    tensors as tensors,
)
from flray.core.messages.records import (
    to_numpy as to_numpy,
)
from flray.core.messages.records import (
    to_torch as to_torch,
)
