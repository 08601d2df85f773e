"""Mappings serve again, and what is cut from one does not overlap."""

from __future__ import annotations

import torch

from onthejob.models.native import huge_pages
from onthejob.models.native.huge_pages import Memory, Room

ROOMS = {"a": Room((3, 5)), "b": Room((7,), torch.bfloat16), "c": Room((2, 2), torch.uint8)}


def test_tensors_have_their_shapes_and_do_not_overlap():
    _, found = Memory().take(ROOMS)
    for number, (name, room) in enumerate(ROOMS.items()):
        assert found[name].shape == torch.Size(room.shape)
        assert found[name].dtype is room.dtype
        assert found[name].data_ptr() % 64 == 0
        found[name].fill_(number + 1)
    assert [float(tensor.float().mean()) for tensor in found.values()] == [1, 2, 3]


def test_a_mapping_serves_again_when_it_is_given_back():
    held = Memory()
    first, _ = held.take(ROOMS)
    second, _ = held.take(ROOMS)
    assert second.data_ptr() != first.data_ptr()
    held.give_back(first)
    third, _ = held.take({"smaller": Room((2,))})
    assert third.data_ptr() == first.data_ptr()
    held.give_back(third)
    fourth, found = held.take({"larger": Room((1 << 20,))})
    assert len(fourth) >= 1 << 22
    assert found["larger"].shape == (1 << 20,)


def test_large_mappings_are_not_kept(monkeypatch):
    held = Memory()
    monkeypatch.setattr(huge_pages, "MOST_KEPT", 0.0)
    whole, _ = held.take(ROOMS)
    held.give_back(whole)
    assert held._spare == []
