"""G8: what a role may not know never alters a byte of what it is shown, with any partners."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from checks.office.gates.finding import Finding, Statistics, found, nothing
from checks.office.gates.gate import Counts, Job, Played
from checks.office.gates.matches import FIRST_SEED
from checks.office.gates.signal import TEACHER
from checks.office.gates.teams import SEATS, STRANGERS, TeamTable
from onthejob.envs.office import prompt, scenarios
from onthejob.envs.office.company_state import PAINS, TURNS_PER_DAY, Account, CompanyState
from onthejob.envs.office.fast_play import run
from onthejob.envs.office.luck import Sub, draw
from onthejob.envs.office.policies import Player
from onthejob.envs.office.simulator import Simulator
from onthejob.envs.office.views import view

Reader = Callable[[CompanyState, str], bytes]
"""What a role is shown, as bytes."""


PARTNERS: MappingProxyType[str, Player] = MappingProxyType({"experts": TEACHER, **STRANGERS})
"""Who plays to the states that are looked at: what they did is what there is to be seen."""


class Secret(NamedTuple):
    """Something that only some roles may know."""

    known_to: frozenset[str]
    change: Callable[[CompanyState], None]
    visible: bool = True
    """Some role is shown it, so that changing it must alter something; False for what no role may know."""


def _accounts(change: Callable[[Account], None], *, known: bool | None = None) -> Callable[[CompanyState], None]:
    def all_of_them(s: CompanyState) -> None:
        for account in s.accounts:
            if known is None or account.known == known:
                change(account)

    return all_of_them


def _other_pain(a: Account) -> None:
    a.pain = (a.pain + 1) % len(PAINS)


def _better(a: Account) -> None:
    a.quality, a.deadline = 1.0 - a.quality, a.deadline + 9


def _colder(a: Account) -> None:
    a.contact -= 3 * TURNS_PER_DAY


def _object(a: Account) -> None:
    a.objections += 1


def _demand(s: CompanyState) -> None:
    s.demand = [list(reversed(wants)) for wants in s.demand]


def _morale(s: CompanyState) -> None:
    s.morale = 1.0 - s.morale


def _debt(s: CompanyState) -> None:
    s.docs_level = 1.0 - s.docs_level
    s.feature_left = [left + 1.0 for left in s.feature_left]


def _funnel(s: CompanyState) -> None:
    s.competitor = 1.0 - s.competitor
    s.researched = [2, 2, 2]


def _content(s: CompanyState) -> None:
    s.content_stock += 5_000.0


def _pool(s: CompanyState) -> None:
    s.board_pool += 900_000
    s.envelopes["dev"] += 70_000


def _calendar(s: CompanyState) -> None:
    s.schedule.append([s.days, "pr_crisis"])


def _whisper(reader: str) -> Callable[[CompanyState], None]:
    def change(s: CompanyState) -> None:
        s.inbox.setdefault(reader, []).append([s.turn, "customer", "need coffee", reader])

    return change


_ACCOUNTS = frozenset({"sales", "ceo", "content", "marketing"})
SECRETS: MappingProxyType[str, Secret] = MappingProxyType(
    {
        "what a lead that was not qualified needs": Secret(frozenset(), _accounts(_other_pain, known=False), False),
        "how likely and how soon a lead buys": Secret(frozenset(), _accounts(_better), False),
        "what segments need": Secret(frozenset(), _demand, False),
        "events to come": Secret(frozenset({"ceo"}), _calendar, False),
        "when accounts were called": Secret(frozenset({"sales"}), _accounts(_colder)),
        "objections": Secret(frozenset({"sales"}), _accounts(_object)),
        "what leads need": Secret(frozenset({"sales", "content"}), _accounts(_other_pain)),
        "morale": Secret(frozenset({"hr"}), _morale),
        "build state and documentation": Secret(frozenset({"dev"}), _debt),
        "rival and research": Secret(frozenset({"marketing"}), _funnel),
        "visits by content": Secret(frozenset({"content"}), _content),
        "money to allocate": Secret(frozenset({"ceo"}), _pool),
        **{f"messages to {role}": Secret(frozenset({role}), _whisper(role)) for role in SEATS},
    }
)
"""What is kept from whom; `tests/envs/office/test_views.py` goes through every field of the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """What one state showed."""

    scenario: str
    seed: int
    partners: str = "experts"
    """Who played to it."""
    checked: int
    """Pairs of a secret and a role that must not know it."""
    leaks: tuple[str, ...]
    """`role sees secret`."""
    seen: tuple[str, ...]
    """Secrets that those who know them were shown here."""


def shown(s: CompanyState, role: str) -> bytes:
    """The compact prompt of `role`."""
    return "\n".join(message.content for message in prompt.messages(view(s, role), profile="compact")).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One state in which every secret is changed once."""

    scenario: str
    seed: int
    turn: int
    days: int = 30
    partners: str = "experts"
    reader: Reader = shown

    def run(self) -> Leak:
        """Play to the state and compare what is shown before and after each change."""
        simulator = Simulator(scenarios.load(self.scenario))
        s = simulator.found(self.seed, self.days)
        run(simulator, s, dict.fromkeys(SEATS, PARTNERS[self.partners]), turns=self.turn)
        before = {role: self.reader(s, role) for role in SEATS}
        leaks, seen, checked = [], [], 0
        for name, secret in SECRETS.items():
            changed = s.copy()
            secret.change(changed)
            altered = [role for role in SEATS if self.reader(changed, role) != before[role]]
            leaks += [f"{role} sees {name}" for role in altered if role not in secret.known_to]
            checked += len(set(SEATS) - secret.known_to)
            if set(altered) & secret.known_to:
                seen.append(name)
        found = {"checked": checked, "leaks": tuple(leaks), "seen": tuple(seen)}
        return Leak(scenario=self.scenario, seed=self.seed, partners=self.partners, **found)


@dataclass(frozen=True, slots=True)
class Scoping:
    """No secret reaches a role that may not know it; and the test sees: every visible secret is shown to some role somewhere."""

    name: str = "G8 scoping"

    def jobs(self, counts: Counts, table: TeamTable) -> Iterable[Job]:
        places = [scenario for _ in range(counts.states) for scenario in counts.scenarios]
        for number, scenario in enumerate(places):
            turn = int(draw(number, Sub.POLICY, 5, 0) * TURNS_PER_DAY * max(1, counts.days - 2))
            for partners in PARTNERS:
                yield Look(scenario=scenario, seed=FIRST_SEED + 9_000 + number, turn=turn, days=counts.days, partners=partners)

    def judge(self, measured: Played, statistics: Statistics) -> list[Finding]:
        looks = measured.of(Leak)
        if not looks:
            return [nothing(self.name, "no state was looked at", "leaks", "0")]
        findings = []
        for partners in PARTNERS:
            own = [look for look in looks if look.partners == partners]
            if not own:
                findings.append(nothing(self.name, f"no state of a team of {partners} was looked at", "leaks", "0"))
                continue
            leaks = [leak for look in own for leak in look.leaks]
            checked = sum(look.checked for look in own)
            what = f"{partners}: secrets that reach a role that may not know them, {checked} pairs in {len(own)} states"
            what += f": {leaks[0]}" if leaks else ""
            findings.append(found(self.name, what, float(len(leaks)), "leaks", "0", not leaks))
        blind = [name for name, secret in SECRETS.items() if secret.visible and not any(name in look.seen for look in looks)]
        missing = "secrets that no role is shown, so that nothing was tested" + (f": {blind[0]}" if blind else "")
        return [*findings, found(self.name, missing, float(len(blind)), "secrets", "0", not blind)]
