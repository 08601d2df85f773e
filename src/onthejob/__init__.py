"""LLM agents that learn on the job.

Shows the vocabulary (`onthejob.types`), the base class of environments of your own (`Env`) and the exceptions
(`onthejob.errors`). The rooms are imported by name, so that `import onthejob` touches no disk, no network and no torch:

    from onthejob.learn.lora import Snapshot
    from onthejob.learn.advantage import advantages
"""

from onthejob.envs.env import Env
from onthejob.envs.exchange import Next
from onthejob.errors import (
    ConfigError,
    ContractError,
    MissingDependency,
    ModelError,
    OnTheJobError,
    RecordError,
    TrainingError,
)
from onthejob.types import (
    Adapter,
    Branch,
    Completion,
    Context,
    Environment,
    Forkable,
    Group,
    Kind,
    Message,
    Observation,
    Policy,
    Rubric,
    Sampling,
    Split,
    Step,
    StopReason,
    Task,
    TextObservation,
    Trajectory,
    Turn,
)

__version__ = "0.1.0"

__all__ = [
    "Adapter",
    "Branch",
    "Completion",
    "ConfigError",
    "Context",
    "ContractError",
    "Env",
    "Environment",
    "Forkable",
    "Group",
    "Kind",
    "Message",
    "MissingDependency",
    "ModelError",
    "Next",
    "Observation",
    "OnTheJobError",
    "Policy",
    "RecordError",
    "Rubric",
    "Sampling",
    "Split",
    "Step",
    "StopReason",
    "Task",
    "TextObservation",
    "TrainingError",
    "Trajectory",
    "Turn",
    "__version__",
]
