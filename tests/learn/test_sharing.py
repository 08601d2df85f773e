"""Which roles share an adapter."""

from __future__ import annotations

from pathlib import Path

import pytest

from onthejob.errors import ConfigError
from onthejob.learn.sharing import adapter_sets, check_equal
from onthejob.types import Adapter

ROLES = ("a", "b", "c")


@pytest.mark.parametrize(
    ("option", "sets"),
    [
        ("per-role", {"a": ("a",), "b": ("b",), "c": ("c",)}),
        ("shared", {"a": ("a", "b", "c")}),
        ("c+a", {"a": ("a", "c"), "b": ("b",)}),
        ("a+b,c", {"a": ("a", "b"), "c": ("c",)}),
        ("b", {"a": ("a",), "b": ("b",), "c": ("c",)}),
    ],
)
def test_every_role_is_in_one_set(option: str, sets: dict[str, tuple[str, ...]]):
    assert adapter_sets(option, ROLES) == sets


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("a+d", "the trained ones are a, b, c, got 'd' in 'a+d'"),
        ("per_role", "must be per-role, shared, or sets"),
        ("", "got '' in ''"),
        ("a+b,b+c", "names b twice"),
        ("a+a", "names a twice"),
    ],
)
def test_sets_that_cannot_be(option: str, said: str):
    with pytest.raises(ConfigError, match=said.replace("+", r"\+")):
        adapter_sets(option, ROLES)


def test_a_set_begins_from_equal_adapters():
    def adapter(role: str, digest: str) -> Adapter:
        return Adapter(role=role, version=0, path=Path(role), parent=None, digest=digest)

    same = {role: adapter(role, "x") for role in "ab"}
    check_equal("a+b", ROLES, same, "start")
    check_equal("shared", ROLES, {}, "start")
    check_equal("per-role", ROLES, {**same, "b": adapter("b", "y")}, "start")
    with pytest.raises(ConfigError, match=r"a and b share one adapter, and start holds two that differ.*sft --adapters"):
        check_equal("a+b", ROLES, {**same, "b": adapter("b", "y")}, "start")
    with pytest.raises(ConfigError, match="a and c share one adapter"):
        check_equal("shared", ROLES, same, "start")
