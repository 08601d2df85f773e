"""The vocabulary: what flows from a workplace to a gradient.

    Task -> Observation -> Completion -> Turn -> Trajectory -> Group -> (advantages) -> Batch -> Adapter

Everything else in the package produces, moves or consumes these types. They hold no behaviour beyond derived values, import
nothing heavy, and are frozen: a recorded datum is never edited, only read. `Batch` (tensors) lives in `onthejob.learn.batch`
because this module does not import torch.
"""

from onthejob.types.environments import Branch, Continuable, Environment, Forkable, Imitable, Interruptible, Rubric, Scored
from onthejob.types.requests import (
    Kind,
    Message,
    Observation,
    PromptBudget,
    Prunable,
    Split,
    Step,
    StopReason,
    Task,
    TextObservation,
    ToolCall,
    ToolSpec,
    Window,
)
from onthejob.types.samples import Adapter, Completion, Context, Group, Sampling, Trajectory, Turn
from onthejob.types.services import Budgeted, KeepsVersions, Learner, Policy, Row, Sampler, Tracker

__all__ = [
    "Adapter",
    "Branch",
    "Budgeted",
    "Completion",
    "Context",
    "Continuable",
    "Environment",
    "Forkable",
    "Group",
    "Imitable",
    "Interruptible",
    "KeepsVersions",
    "Kind",
    "Learner",
    "Message",
    "Observation",
    "Policy",
    "PromptBudget",
    "Prunable",
    "Row",
    "Rubric",
    "Sampler",
    "Sampling",
    "Scored",
    "Split",
    "Step",
    "StopReason",
    "Task",
    "TextObservation",
    "ToolCall",
    "ToolSpec",
    "Tracker",
    "Trajectory",
    "Turn",
    "Window",
]
