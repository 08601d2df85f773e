"""`onthejob view`: the viewer on one port of this machine. What only the office takes is in `view_office`."""

from __future__ import annotations

import dataclasses
import html
import secrets
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import tyro

from onthejob.api.asking import Asking
from onthejob.commands.collected_runs import collected_folder, free_seed, modes_of, office_place, open_collected
from onthejob.commands.env import group_prefix
from onthejob.commands.env_options import EnvOptions, starting
from onthejob.commands.listening import bind, is_loopback, listen, serve, shown_host
from onthejob.commands.named_env import NamedEnv
from onthejob.commands.player_specs import BASE, PARTNER, HostedOptions, HostedSeats, ModelOptions
from onthejob.commands.prompt_lengths import Fit
from onthejob.commands.recorded_work import opened_work
from onthejob.commands.runs import RUNS, run_folder
from onthejob.commands.terminal import Output, Terminal, jsonable
from onthejob.commands.view_models import Loader
from onthejob.envs.declared import options_of
from onthejob.envs.env import Env
from onthejob.envs.office.env import SEATS
from onthejob.envs.office.policies import players
from onthejob.errors import ConfigError
from onthejob.models.catalogue import load_catalogue
from onthejob.office import Office
from onthejob.train.collected import TEMPERATURE

if TYPE_CHECKING:
    from onthejob.api.game_tables import PlayedEnv
    from onthejob.record import Run
    from onthejob.rollout.seats import Mode

LEADS = (
    '<!doctype html><meta charset="utf-8"><title>onthejob</title><meta http-equiv="refresh" content="0; url={address}">'
    '<a href="{address}">onthejob</a>'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """The company that is founded first, and who can be seated in it."""

    scenario: str = "baseline"
    days: int = 30
    seed: int | None = None
    """None: 1000, or where turns are collected the first training seed of which there are none yet."""
    seats: Mapping[str, str] = field(default_factory=lambda: dict.fromkeys(SEATS, PARTNER))
    model: ModelOptions = field(default_factory=ModelOptions)
    hosted: HostedOptions = field(default_factory=HostedOptions)
    asking: Asking = field(default_factory=Asking)
    """Settings of models whose training is not recorded."""
    max_model_gib: float | None = None
    mode: tuple[str, ...] = ()
    """Mode of the seats, as for `play`."""
    collect: str = ""
    """The run to which turns of seats in training mode are added; empty: no seat can be in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Play an environment in the browser, take a seat, and look into recorded runs."""

    run_: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(name="run")] = None
    """A run to open first (its folder, or its name in `runs/`), or a game that `onthejob play` wrote. Runs in the same
    folder are listed."""
    env: str = "office"
    """The environment that is played in the browser: `office`, `claw`, or one of your own, as for `train`. Name it before its
    options."""
    own: EnvOptions = None
    """Options of the environment; None for its defaults."""
    root: Path = RUNS
    """Folder of recorded runs, when no run is named."""
    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback lets other machines look at your runs."""
    port: int = 8080
    """Port to listen on; 0 takes a free one."""
    open: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = True
    """`--no-open` only prints the address; by default the browser is opened there too."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    @classmethod
    def starting(cls, env: str) -> View:
        """The defaults in environment `env`."""
        return cls(env=env)

    def run(self, terminal: Terminal) -> int:
        """Serve until interrupted."""
        place = NamedEnv(ref=self.env, env=starting(self.env, "View") if self.own is None else self.own)
        company = self.company(place)
        return self._serve(terminal, company, self.tables(place))

    def company(self, place: NamedEnv) -> Company:
        """The office in addition to the environment."""
        return Company()

    def tables(self, place: NamedEnv) -> NamedEnv | None:
        """The environment of which a person plays episodes; None where the office's own pages are enough."""
        return place

    def _serve(self, terminal: Terminal, company: Company, played: NamedEnv | None) -> int:
        from pydantic import ValidationError

        from onthejob.api.app import PAGES, create_app
        from onthejob.api.collecting import CollectingRun
        from onthejob.api.game_tables import GameTables
        from onthejob.api.schema_office import Reset
        from onthejob.api.security import LOOPBACK
        from onthejob.rollout.game_file import Replay

        replay = Replay.read(self.run_) if self.run_ is not None and self.run_.is_file() else None
        root, name = (self.root, "")
        if self.run_ is not None and replay is None:
            folder = run_folder(self.run_)
            if not (folder / "run.sqlite").is_file():
                raise ConfigError(f"{self.run_} holds no run. `onthejob runs ls` lists the runs of a folder.")
            root, name = folder.absolute().parent, folder.name
        load = Loader(company.model, company.asking, terminal.progress, max_gib=company.max_model_gib)
        extra = [
            player
            for player in dict.fromkeys(company.seats.values())
            if not (player in players() or player == BASE or (root / player / "run.sqlite").is_file())
        ]
        load_catalogue()  # a mistake in the user's own is better said now than on a page
        away = Away(company.hosted)
        folder = collected_folder(company.collect, root) if company.collect else None
        seed = company.seed if company.seed is not None else 1_000 if folder is None else free_seed(folder)
        modes = _modes(company) if company.mode else {}
        try:
            asked = {
                "scenario": company.scenario,
                "seed": seed,
                "days": company.days,
                "seats": dict(company.seats),
                "modes": modes,
            }
            first = Reset.model_validate(asked)
        except ValidationError as error:
            problem = error.errors()[0]
            flag = {"scenario": "--env.scenarios", "days": "--env.days"}.get(str(problem["loc"][0]), f"--{problem['loc'][0]}")
            raise ConfigError(f"{flag}: {problem['msg']}, got {problem['input']!r}.") from error
        token = secrets.token_urlsafe(24)
        with ExitStack() as held:
            held.enter_context(closing(away))
            tables = None
            if played is not None:
                played.check()
                tables = held.enter_context(GameTables(tables_of(played), threads=played.env.threads, name=played.name))
            collecting = None
            if folder is not None:
                collecting = held.enter_context(closing(CollectingRun(folder.name, partial(opened_for, folder))))
                terminal.progress(f"seed {seed}; turns of seats in training mode go to {folder}")
            app = create_app(
                token=token,
                hosts=LOOPBACK if is_loopback(self.host) else (*LOOPBACK, self.host, socket.gethostname()),
                runs=root,
                open_run=name,
                load=load,
                extra_players=extra,
                hosted=away,
                default=first,
                replay=replay,
                tables=tables,
                collecting=collecting,
                open_work=opened_work,
            )
            if not (PAGES / "index.html").is_file():
                terminal.warn("the viewer's pages are not built; the API works. With node and npm: make viewer.")
            if not is_loopback(self.host):
                terminal.warn(
                    f"{self.host} can be reached from other machines: anyone who can connect to the port can look at the runs."
                )
            port = bind(self.host, self.port)
            listen(port, self.host)
            address = f"http://{shown_host(self.host)}:{port.getsockname()[1]}/#token={token}"
            terminal.out.print(address, markup=False, soft_wrap=True)
            level = "debug" if self.output.debug else "warning"
            with opened(address) if self.open else nullcontext():
                serve(
                    app,
                    port,
                    self.host,
                    log_level=level,
                    ws="websockets-sansio",
                    ws_max_size=65_536,
                    timeout_graceful_shutdown=2,
                )
        if spent := away.spent():
            terminal.progress(f"hosted models: {spent}")
        return 0


def _modes(company: Company) -> dict[str, Mode]:
    """Modes of the seats at first; the customer's has none."""
    return modes_of(company.mode, {role: who for role, who in company.seats.items() if role in SEATS}, players())


def opened_for(folder: Path, asking: Asking) -> Run:
    """The run of collected turns in `folder`, for seats that are asked like `asking`."""
    office = Office(profile=asking.profile, prompt_budget=asking.budget, tokenizer=asking.tokenizer)
    return open_collected(
        folder,
        office_place(office),
        model=asking.base,
        template_arguments=asking.template_arguments,
        sampling=asking.sampling(TEMPERATURE),
    )


def tables_of(place: NamedEnv) -> Callable[[], AbstractContextManager[PlayedEnv]]:
    """How an environment is opened for playing, and closed."""
    from onthejob.api.game_tables import PlayedEnv
    from onthejob.compat.served import served

    @contextmanager
    def open_() -> Iterator[PlayedEnv]:
        with place.opened():
            yield PlayedEnv(
                workplace=served(place.env),
                tasks=place.splits(),
                family=place.env.family,
                options=jsonable(shown_options(place.env)),
                max_turns=place.env.max_turns,
                max_new_tokens=place.env.max_new_tokens,
            )

    return open_


def shown_options(env: Env) -> dict[str, Any]:
    """Options by name: all top-level ones, and those in nested groups that differ from their defaults."""
    usual, found = options_of(type(env)()), options_of(env)
    nested = {name: value for name, value in found.items() if dataclasses.is_dataclass(value)}
    plain = {name: value for name, value in found.items() if name not in nested}
    hints = get_type_hints(type(env), include_extras=True)
    for name, group in nested.items():
        plain |= _changed(group, usual[name], group_prefix(hints[name], name))
    return plain


def _changed(group: Any, usual: Any, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in dataclasses.fields(group):
        value, before = getattr(group, one.name), getattr(usual, one.name)
        if dataclasses.is_dataclass(value):
            found |= _changed(value, before, f"{prefix}{one.name}.")
        elif value != before:
            found[f"{prefix}{one.name}"] = value
    return found


@contextmanager
def opened(address: str, *, after_s: float = 0.7) -> Iterator[None]:
    """Open `address` in the browser, through a file that leads there and only this user can read.

    Every user of this machine can read a browser's command line, and with it the token in an address.

    Args:
        address: of the viewer, with the token.
        after_s: seconds until the server answers.
    """
    with tempfile.TemporaryDirectory(prefix="onthejob-view-") as folder:
        page = Path(folder, "open.html")
        page.touch(mode=0o600)
        page.write_text(LEADS.format(address=html.escape(address)), encoding="ascii")
        opening = threading.Timer(after_s, webbrowser.open, [page.as_uri()])
        opening.start()
        try:
            yield
        finally:
            opening.cancel()  # the file is about to go


class Away(HostedSeats):
    """Hosted models for seats, and what they took."""

    def __init__(self, options: HostedOptions) -> None:
        from onthejob.api.players import HOSTED_RETRIES
        from onthejob.api.seated import PROFILE

        # As a world shows prompts and corrects replies; the limit of a reply is the catalogue's where it is longer.
        office = Office(profile=PROFILE, retries=HOSTED_RETRIES)
        super().__init__(options, fit=Fit(env=office, reply=Office.max_new_tokens))
        self._last = ""

    def spent(self) -> str:
        """Requests, tokens and dollars of all of them; empty when nothing was asked."""
        accounts = self.accounts.values()
        requests = sum(account.requests for account in accounts)
        if requests:
            tokens = sum(account.prompt_tokens + account.completion_tokens for account in accounts)
            unknown = sum(account.unanswered + account.unpriced for account in accounts)
            price = f"${sum(account.usd for account in accounts):.4f}" + (f" and {unknown} without a price" if unknown else "")
            self._last = f"{requests} requests, {tokens} tokens, {price}"
        return self._last
