"""Functions of the user's in the update: a loss (`--learner.loss.loss`) and an estimator (`--advantage.estimator`).

Both are called where ours would compute the same, and what they return is checked: a mistake ends the run with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from onthejob.errors import TrainingError
from onthejob.plugins import function_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerms:
    """What a loss of the user's is given: the sampled tokens of one row, N of them, some or all of an update.

    The function returns a loss for every token, shape (N,), with a gradient from `logprobs`. Its mean over the tokens of a
    trajectory, then over the trajectories of the update, is the loss; the weights do not depend on how the update is cut into
    rows. Corrections, KL term and entropy of the options are applied outside of it.
    """

    logprobs: Tensor
    """Of the present policy, with gradient.  # (N,)"""
    old: Tensor
    """Of the policy before the update, or with old='sampler' as they were recorded.  # (N,)"""
    sampled: Tensor
    """As they were recorded; NaN where none was.  # (N,)"""
    advantage: Tensor
    """Of the token's trajectory.  # (N,)"""
    trajectory: Tensor
    """Number of the token's trajectory in this row, from 0.  # (N,), int64"""
    length: Tensor
    """Sampled tokens of that trajectory, also those in other rows.  # (N,)"""
    reference: Tensor | None
    """Of the reference policy.  # (N,)"""
    entropy: Tensor | None
    """Of the present policy at each token, with gradient.  # (N,)"""


def own_loss(ref: str, terms: LossTerms) -> Tensor:
    """The tokens' losses by the user's function.

    Raises:
        ConfigError: there is no such function.
        TrainingError: it raises, or returns something else than a loss for every token.
    """
    # Only now: advantages are computed without it.
    from torch import Tensor

    function = function_of(ref, "--learner.loss.loss")
    try:
        value = function(terms)
    except Exception as error:
        raise TrainingError(
            f"the loss {ref} raised {type(error).__name__}: {error}. Correct it, and continue with --resume."
        ) from error
    count = len(terms.logprobs)
    if not isinstance(value, Tensor) or value.shape != terms.logprobs.shape:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise TrainingError(f"the loss {ref} must return a tensor with a loss for each of the {count} tokens, got {got}.")
    if not value.requires_grad:
        raise TrainingError(f"the loss {ref} returned a tensor without gradient. Compute it from terms.logprobs, undetached.")
    return value


def own_advantages(ref: str, returns: npt.NDArray[np.float64], usable: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """The advantages of a group's trajectories by the user's function.

    Args:
        ref: names the function.
        returns: of the trajectories that did not end in an error.  # (K,)
        usable: whether each of them was.  # (K,)

    Raises:
        ConfigError: there is no such function.
        TrainingError: it raises, or returns something else than K finite numbers.
    """
    function = function_of(ref, "--advantage.estimator")
    try:
        found = np.asarray(function(returns.copy(), usable.copy()), dtype=np.float64)
    except Exception as error:
        raise TrainingError(f"the estimator {ref} raised {type(error).__name__}: {error}. Correct it.") from error
    if found.shape != returns.shape or not np.isfinite(found).all():
        raise TrainingError(f"the estimator {ref} must return {len(returns)} finite numbers, got {found!r:.80}.")
    return found
