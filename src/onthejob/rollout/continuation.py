"""continuation: lets the present policies play branches to their end, all branches of an iteration at once.

If scripted players continue a branch, a reply is worth what it is worth among them. Where a policy can exploit such a player (an
opponent that always gives way, a colleague that repairs everything), it learns to do so, although it will not meet that player.
Here the segment's own players continue in all seats. All replies of a group are continued from the same state, in the same
worlds and with the same seeds, so that they differ by what they did. Branches wait until the segments have been played: in large
batches a reply costs a fraction of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onthejob.errors import ConfigError
from onthejob.keys import keyed_seed
from onthejob.rollout.branch import BranchConfig, BranchFailure, ReplyScores, Scales, ScoreRequest, compose, distinct
from onthejob.rollout.contract import state_count
from onthejob.rollout.episode import LiveEpisode
from onthejob.rollout.play import each, play_on, policy_for
from onthejob.rollout.pulse import Pulse
from onthejob.types import Branch, Completion, Context, Continuable, Environment, Policy, Sampling, StopReason


def continuable(env: Environment) -> Continuable:
    """`env`, whose forks policies can continue.

    Raises:
        ConfigError: they cannot.
    """
    if not isinstance(env, Continuable):
        raise ConfigError(
            f"forks of {type(env).__name__} cannot be continued by policies: it has no enter(world) and outcome(). "
            "Set --branch.continuation partners."
        )
    return env


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The replies to one prompt, sampled and not yet stepped."""

    live: LiveEpisode
    """The segment, waiting for one of them."""
    context: Context
    """The prompt."""
    completions: Sequence[Completion]
    policy: Policy
    """Who sampled them."""
    seats: Mapping[str, Policy]
    """Actor -> the policy that continues."""
    seed: int
    """Of the segment at this turn."""


@dataclass(slots=True)
class _Branch:
    live: LiveEpisode
    env: Continuable
    seats: Mapping[str, Policy]
    seed: int
    begun: int
    """Turns of the environment before the reply."""
    valid: bool = True
    """The reply was usable."""

    @property
    def turns(self) -> int:
        """Turns since, by the environment's own count where it has one: scripted seats may take turns in between."""
        return _turns(self.env, self.live.turn) - self.begun


class Continuations:
    """The branches of one iteration: begun where replies are sampled, continued by `play`, then scored."""

    def __init__(
        self, config: BranchConfig, scales: Mapping[str, Scales], partners: Mapping[str, Policy], sampling: Sampling, *, what: str
    ) -> None:
        """Nothing is begun.

        Args:
            config: turns and weights.
            scales: of every trained actor.
            partners: actor -> scripted player, for conversations whose beginning no policy knows.
            sampling: of the policies that continue.
            what: is collected, for lines in the log.
        """
        self._config, self._scales, self._partners, self._sampling = config, scales, partners, sampling
        self._branches: list[_Branch] = []
        self._what = what
        self.tokens = 0
        """Sampled in continuations."""

    def submit(
        self, requests: Sequence[ScoreRequest], answered: Sequence[Answered]
    ) -> Callable[[], list[ReplyScores | BranchFailure]]:
        """Step every distinct reply of each request in every world; returns what gives the scores once `play` is done."""
        begun = [self._stepped(request, replies) for request, replies in zip(requests, answered, strict=True)]
        return lambda: [self._scores(request, branches) for request, branches in zip(requests, begun, strict=True)]

    def _stepped(self, request: ScoreRequest, answered: Answered) -> dict[str, list[_Branch] | BranchFailure]:
        first: dict[str, Completion] = {}
        for key, completion in zip(request.keys, answered.completions, strict=True):
            first.setdefault(key, completion)
        begun: dict[str, list[_Branch] | BranchFailure] = {}
        for key in distinct(request):
            try:
                begun[key] = [self._begin(answered, first[key], world) for world in request.worlds]
            except Exception as error:
                begun[key] = BranchFailure(f"branch of {first[key].text[:80]!r} raised {type(error).__name__}: {error}")
        return begun

    def play(self) -> None:
        """Play all that was begun to its end, or to the limit of turns."""
        if not self._branches:
            return
        of = {id(branch.live): branch for branch in self._branches}

        def stepped(live: LiveEpisode, completion: Completion, step: object) -> None:
            self.tokens += len(completion.token_ids)
            self._limit(of[id(live)])

        with each(1) as over:
            play_on(
                over,
                [branch.live for branch in self._branches],
                self._seat,
                self._sampling,
                seeds=[branch.seed for branch in self._branches],
                max_turns=self._config.turns,
                pulse=Pulse(f"{self._what} branches", rounds=self._config.turns),
                on_turn=stepped,
            )

    def _begin(self, answered: Answered, completion: Completion, world: int) -> _Branch:
        env = continuable(answered.live.env).fork()
        env.enter(world)
        live = answered.live.branched(env, env.observe())
        branch = _Branch(live, env, answered.seats, keyed_seed(answered.seed, "continue", world), _turns(env, 0))
        self._branches.append(branch)
        step = live.advance(answered.context, completion, policy=answered.policy, sampling=self._sampling)
        branch.valid = step is not None and step.valid
        self._limit(branch)
        return branch

    def _limit(self, branch: _Branch) -> None:
        if branch.live.active and branch.turns >= self._config.turns:
            branch.live.cut()

    def _seat(self, index: int) -> Policy:
        branch = self._branches[index]
        policy = policy_for(branch.live, branch.seats)
        if branch.live.holds_context(policy):
            return policy
        # A conversation from before the segment, of which no policy has the tokens, is continued by the scripted partner.
        actor = branch.live.pending().actor
        if actor not in self._partners:
            raise ConfigError(
                f"a branch continues a conversation of {actor!r} from before its segment, and no scripted player can take "
                "over. Set --collect.fresh-share 1, so that segments begin with their tasks."
            )
        return self._partners[actor]

    def _scores(self, request: ScoreRequest, begun: Mapping[str, list[_Branch] | BranchFailure]) -> ReplyScores | BranchFailure:
        found: dict[str, list[Branch]] = {}
        for key, branches in begun.items():
            if isinstance(branches, BranchFailure):
                return branches
            if failed := [branch.live for branch in branches if branch.live.stop is StopReason.ERROR]:
                return BranchFailure(f"a branch failed after {failed[0].turn} turns: {failed[0].error}")
            found[key] = [_result(branch) for branch in branches]
        return compose(request, found, self._config, self._scales[request.actor])


def _result(branch: _Branch) -> Branch:
    return Branch(outcome=branch.env.outcome(), returns=branch.live.rewards, turns=branch.turns, valid=branch.valid)


def _turns(env: Environment, otherwise: int) -> int:
    counted = state_count(env.state(), "turn", type(env).__name__)
    return otherwise if counted is None else counted
