"""A reward of your own in TRL's form, for any environment: `onthejob train --env ... --reward examples/my_reward.py:brief`."""


def brief(completions: list[str], env_return: list[float], **columns: object) -> list[float]:
    """The environment's return, less one cent per character of the last reply."""
    return [paid - 0.01 * len(text) for text, paid in zip(completions, env_return, strict=True)]
