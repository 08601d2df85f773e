"""`onthejob view` with the office: the company that is founded first, and who sits in it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from onthejob.api.asking import Asking
from onthejob.commands.named_env import Workplace, refuse_unused
from onthejob.commands.player_specs import HostedOptions, ModelOptions
from onthejob.commands.view import Company, View
from onthejob.envs.office.env import CUSTOMER, SEATS
from onthejob.errors import ConfigError
from onthejob.office import Office, check_customer
from onthejob.rollout.seats import Mode

USED = ("scenarios", "days", "profile")
"""Options of the office that the viewer depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOffice(View):
    """Watch the office, take a seat, and look into recorded runs, in the browser.

    The company that is founded first has `--env.scenarios` and `--env.days`; without a run it is opened first. A model plays
    as its run did; `--env.profile` says which prompt `base` and adapters without a run read.
    """

    policy: str = "heuristic"
    """Player in all seats at first: a scripted player, `base`, `run:RUN`, a folder of adapters, a hosted model (`openai:URL`,
    `anthropic:MODEL`, `bedrock:MODEL`). The browser can change it."""
    seat: tuple[str, ...] = ()
    """Another player in one seat at first, e.g. `--seat sales=openai:URL dev=expert`. A model named for
    `customer` (`base` or a hosted one) plays it instead of its script, in the whole company."""
    seed: int | None = None
    """Seed of that company; 1000 and up are dev, 50000 and up test, 100000 and up training seeds. None takes 1000, with --collect
    the first training seed of which the run holds no turn: what is kept for evaluation is not trained on."""
    collect: str = ""
    """Add the turns of seats in training mode to this run (a folder, or a name among the runs that are shown), for
    `train --collected` and `sft --collected`. The browser chooses the seats, and --mode those at first."""
    mode: tuple[str, ...] = ()
    """Mode of the seats at first: `training` for all with a model of this machine, `sales=training` for one. Without it such a
    model is in `inference`, a hosted one in `llm`."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """The language model behind `base` and adapters whose run is not known; loaded when it is first needed."""
    max_new_tokens: int = Office.max_new_tokens
    """Limit of a reply in tokens, for `base` and adapters whose run is not known, as --env.profile; others play as their run
    did."""
    max_model_gib: float | None = None
    """Weights of all models of this machine together, in GiB; those in no seat make way. None takes half of the
    machine's memory, or of the GPU's."""
    hosted: HostedOptions = field(default_factory=HostedOptions)
    """Hosted models, when one is seated."""

    def company(self, place: Workplace) -> Company:
        options = place.env
        unused = [one.name for one in fields(options) if one.name not in USED]  # type: ignore[arg-type]
        refuse_unused(options, Office.starting_options("View"), unused, "view")
        if not isinstance(options, Office) or len(options.scenarios) != 1:
            count = len(getattr(options, "scenarios", ()))
            raise ConfigError(f"view founds one company, got {count} scenarios. Name one: --env.scenarios churn.")
        if self.max_new_tokens < 1:
            raise ConfigError(f"--max-new-tokens must be >= 1, got {self.max_new_tokens}.")
        if self.max_model_gib is not None and not 0 < self.max_model_gib < float("inf"):
            raise ConfigError(f"--max-model-gib must be above 0, got {self.max_model_gib}. Leave it out for half of the memory.")
        if not self.collect and any(mode.endswith(Mode.TRAINING) for mode in self.mode):
            raise ConfigError(f"--mode {' '.join(self.mode)} needs --collect RUN, the run where the turns are kept.")
        return Company(
            scenario=options.scenarios[0],
            days=options.days,
            seed=self.seed,
            seats=self._seats(),
            model=self.model,
            hosted=self.hosted,
            asking=Asking(profile=options.profile, max_new_tokens=self.max_new_tokens),
            max_model_gib=self.max_model_gib,
            mode=self.mode,
            collect=self.collect,
        )

    def tables(self, place: Workplace) -> None:
        return None

    def _seats(self) -> dict[str, str]:
        """Seat -> who sits there first."""
        seats = dict.fromkeys(SEATS, self.policy.removeprefix("run:"))
        for given in self.seat:
            role, equals, player = given.partition("=")
            if role not in (*SEATS, CUSTOMER) or not equals or not player:
                roles = ", ".join((*SEATS, CUSTOMER))
                raise ConfigError(f"--seat takes ROLE=PLAYER with a role of {roles}, got {given!r}.")
            if role == CUSTOMER:
                check_customer(player)
            seats[role] = player.removeprefix("run:")
        return seats
