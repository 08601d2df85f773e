"""One host of sandboxes for all tests here. Without bubblewrap they fail rather than being skipped: the sandbox is a must."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onthejob.envs.claw.sandbox.host import BwrapHost


@pytest.fixture(scope="session")
def host() -> Iterator[BwrapHost]:
    with BwrapHost() as made:
        yield made
