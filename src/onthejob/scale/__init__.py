"""Where jobs are done: in this process, in processes of this machine, or on a Ray cluster, with the same results."""

from onthejob.scale.runtime import Job, Runtime
from onthejob.scale.scale_config import ScaleConfig, open_runtime

__all__ = ["Job", "Runtime", "ScaleConfig", "open_runtime"]
