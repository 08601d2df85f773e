"""Numbers for actions and vectors for views: nothing legal is omitted, nothing is named twice, nothing visible is lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np
import pytest

from onthejob.compat.discrete import DiscreteActions
from onthejob.compat.features import LIMIT, Features
from onthejob.envs.office.actions import parse
from onthejob.envs.office.env import INVALID_KEY, SEATS, OfficeEnvironment
from onthejob.envs.office.roles import ROLES, Role
from onthejob.envs.office.scenarios import SHIPPED
from onthejob.envs.office.tasks import office_tasks
from onthejob.errors import ConfigError
from onthejob.keys import keyed_choice
from onthejob.types import Split


class Read(dict):
    """A view that remembers what was read of it."""

    def __init__(self, view):
        super().__init__(view)
        self.keys_read = set()

    def __getitem__(self, key):
        self.keys_read.add(key)
        return super().__getitem__(key)


def states(seeds: int, days: int = 30):
    """(environment, request) along episodes of random legal play in all scenarios; Sales asks the CEO for approvals."""
    for task in office_tasks(Split.DEV, seeds=seeds, days=days):
        env = OfficeEnvironment()
        request = env.reset(task)
        turn = 0
        while request is not None:
            yield env, request
            reply = keyed_choice(request.view["legal"], task.seed, turn)
            if request.actor == "sales" and request.view["leads"]:
                name = keyed_choice(request.view["leads"], task.seed, "ask", turn)["name"]
                reply = reply[:-1] + f',"message":"ceo: approve {name}"}}'
            request = env.step(reply).observation
            turn += 1


def test_every_legal_action_has_one_number_and_every_other_number_is_impossible(counts: Callable[[int, int], int]):
    codecs = {role: DiscreteActions(role) for role in SEATS}
    used = defaultdict(set)
    for env, request in states(counts(1, 6)):
        codec, role = codecs[request.actor], Role(request.actor)
        legal = env.legal_actions()
        numbers = [codec.index(action, request.view) for action in legal]
        assert None not in numbers, (request.actor, [a for a, n in zip(legal, numbers, strict=True) if n is None])
        assert len(set(numbers)) == len(legal)
        for number, action in zip(numbers, legal, strict=True):
            assert parse(codec.reply(number, request.view), role) == action
        mask = codec.mask(env, request.view)
        assert set(np.flatnonzero(mask)) == set(numbers)
        for number in np.flatnonzero(mask == 0):
            assert env.canonical(codec.reply(int(number), request.view)) == INVALID_KEY
        used[request.actor] |= {codec.places[number].action_type for number in numbers}
    for role in SEATS:
        assert used[role] == set(ROLES[Role(role)].actions), "a kind of action was never seen legal: the test shows too little"


def test_numbers_are_of_the_size_that_the_documents_state():
    assert {role: len(DiscreteActions(role)) for role in SEATS} == {
        "ceo": 22,
        "dev": 29,
        "marketing": 15,
        "sales": 46,
        "content": 33,
        "hr": 10,
    }


def test_a_vector_reads_the_whole_view_and_tells_states_apart():
    makers = {role: Features(role) for role in SEATS}
    vectors, texts = defaultdict(set), defaultdict(set)
    seen = Counter()
    for _, request in states(1):
        role = request.actor
        view = Read(request.view)
        vector = makers[role](view)
        assert vector.shape == (len(makers[role]),)
        assert vector.dtype == np.float32
        assert np.isfinite(vector).all()
        assert abs(vector).max() < LIMIT, [n for n, v in zip(makers[role].names, vector, strict=True) if abs(v) >= LIMIT]
        assert view.keys_read == set(request.view) - {"role"}
        vectors[role].add(vector.tobytes())
        texts[role].add(repr(sorted((key, value) for key, value in request.view.items() if key != "inbox")))
        seen.update({(role, name): 1 for name, value in zip(makers[role].names, vector, strict=True) if value})
    for role in SEATS:
        assert len(makers[role].names) == len(set(makers[role].names))
        # Two views that differ outside of messages differ as vectors.
        assert len(vectors[role]) >= len(texts[role])
    used = {role: sum(1 for who, _ in seen if who == role) / len(makers[role]) for role in SEATS}
    assert min(used.values()) > 0.4, used


def test_unknown_roles_and_numbers_are_refused():
    with pytest.raises(ConfigError, match=r"unknown role 'boss'; known are ceo, dev"):
        DiscreteActions("boss")
    with pytest.raises(ConfigError, match=r"no features for 'customer'; there are for ceo"):
        Features("customer")
    env = OfficeEnvironment()
    request = env.reset(office_tasks(Split.DEV, seeds=1, scenarios=SHIPPED[:1])[0])
    codec = DiscreteActions("ceo")
    for number in (-1, len(codec)):
        with pytest.raises(ConfigError, match=rf"ceo has the actions 0\.\.21, got {number}"):
            codec.reply(number, request.view)
