"""The loop: `train` calls the rooms in order, one iteration after another; `replay_update` performs a recorded one again."""

from onthejob.train.config import TrainConfig
from onthejob.train.loop import train
from onthejob.train.redo_update import replay_update
from onthejob.train.reports import IterationReport, RoleReport, TrainResult
from onthejob.train.state import Evaluate

__all__ = ["Evaluate", "IterationReport", "RoleReport", "TrainConfig", "TrainResult", "replay_update", "train"]
