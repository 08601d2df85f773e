"""From tasks and policies to groups: whole episodes (`play`), and replies compared in forks (`Collector`, `score_replies`)."""

from onthejob.rollout.branch import BranchConfig, BranchScorer, Scales, score_replies
from onthejob.rollout.collect import CollectConfig, Collection, Collector
from onthejob.rollout.collect_episodes import collect_episodes, episode_groups
from onthejob.rollout.episode import Episode
from onthejob.rollout.library import SnapshotLibrary
from onthejob.rollout.play import play
from onthejob.rollout.pool import TaskPool
from onthejob.rollout.scales import measure_scales

__all__ = [
    "BranchConfig",
    "BranchScorer",
    "CollectConfig",
    "Collection",
    "Collector",
    "Episode",
    "Scales",
    "SnapshotLibrary",
    "TaskPool",
    "collect_episodes",
    "episode_groups",
    "measure_scales",
    "play",
    "score_replies",
]
