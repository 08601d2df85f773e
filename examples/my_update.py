"""A loss and an estimator of your own, for `onthejob train --learner.loss.loss examples/my_update.py:clipped`."""

import numpy as np
import torch

from onthejob.learn.own import LossTerms


def clipped(terms: LossTerms) -> torch.Tensor:
    """PPO's clipped surrogate, the same as `grpo`: one loss per sampled token, shape (N,)."""
    ratio = torch.exp(terms.logprobs - terms.old)
    return -torch.min(ratio * terms.advantage, ratio.clamp(0.8, 1.2) * terms.advantage)


def leave_one_out(returns: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """RLOO (arXiv 2402.14740): each return less the mean of the group's others; unusable replies are not pushed down further."""
    count = len(returns)
    return (returns - returns.mean()) * count / (count - 1) if count > 1 else np.zeros(count)
