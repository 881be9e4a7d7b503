"""Who holds what, when, and what is tested: stages, partitions, held-out parts.

Importing it reads no file.
"""

from flray.scenario.build import build as build
from flray.scenario.devices import (
    Availability as Availability,
    Coordination as Coordination,
    Devices as Devices,
    DevicesConfig as DevicesConfig,
    Presence as Presence,
    Staleness as Staleness,
    Until as Until,
    Work as Work,
)
from flray.scenario.drift import DRIFTS as DRIFTS, Drift as Drift, Drifting as Drifting, DriftWarning as DriftWarning
from flray.scenario.held_out import ValidationConfig as ValidationConfig
from flray.scenario.partition import (
    Partition as Partition,
    PartitionWarning as PartitionWarning,
    load_partition as load_partition,
    make_partition as make_partition,
    partition_csv as partition_csv,
    partition_table as partition_table,
)
from flray.scenario.partition_config import PARTITIONS as PARTITIONS, PartitionConfig as PartitionConfig
from flray.scenario.scenario import (
    Scenario as Scenario,
    Shares as Shares,
    clients_at as clients_at,
    drift_table as drift_table,
)
from flray.scenario.tasks import (
    Stage as Stage,
    TasksConfig as TasksConfig,
    TestSet as TestSet,
    local_test as local_test,
    meanings as meanings,
    num_outputs as num_outputs,
    relabelled as relabelled,
)
