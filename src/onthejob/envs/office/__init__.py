"""The office. Of its modules only the article's reward is shown here, under the name by which `--reward` finds it."""

from onthejob.envs.office.article import article_reward

__all__ = ["article_reward"]
