"""Races of permutes in flight."""

from __future__ import annotations

import pytest
from hazard_tools import instruction, part, tensor

from nkisim.enums import MemoryRegion
from nkisim.hazards import InFlight, Race
from nkisim.trace import Access, Place


class Ring:
    """Permutes and DMAs of one core."""

    def __init__(self) -> None:
        self.detector = InFlight()
        self.line = 0

    def permute(self, *channels: tuple[Access, Access]) -> list[Race]:
        self.line += 1
        srcs, dsts = zip(*channels, strict=True)
        issued = instruction("collective_permute_implicit", self.line, dsts, srcs)
        return self.detector.issue(issued, channels)

    def write(self, access: Access, *reads: Access) -> list[Race]:
        self.line += 1
        return self.detector.observe(instruction("dma_copy", self.line, [access], list(reads)))

    def read(self, *reads: Access) -> list[Race]:
        return self.write(part(tensor("elsewhere")), *reads)


@pytest.mark.parametrize("region", [MemoryRegion.shared_hbm, MemoryRegion.sbuf])
def test_a_write_to_source_or_destination_in_flight_is_a_race(region: MemoryRegion) -> None:
    src, dst = tensor("k0", region=region), tensor("k1", region=region)
    ring = Ring()
    assert ring.permute((part(src), part(dst))) == []
    (on_source,) = ring.write(part(src, 1000, 4))
    assert str(on_source) == (
        "dma_copy at ring.py:2 writes 'k0' while collective_permute_implicit at ring.py:1 is in "
        "flight on those bytes as its source, 'k0'; nothing has read its destination, 'k1', since"
    )
    assert (on_source.first, on_source.second) == ("ring.py:1", "ring.py:2")
    (on_destination,) = ring.write(part(dst, 0, 1))
    assert "as its destination, 'k1'" in str(on_destination)


def test_reading_any_of_the_destination_ends_the_flight() -> None:
    src, dst = tensor("k0"), tensor("k1")
    ring = Ring()
    ring.permute((part(src), part(dst)))
    # reading the source waits for nothing
    assert ring.read(part(src)) == []
    assert len(ring.write(part(src))) == 1
    assert ring.read(part(dst, 512, 2)) == []
    assert len(ring.detector) == 0
    assert ring.write(part(src)) == []
    assert ring.write(part(dst)) == []


def test_an_instruction_may_overwrite_what_it_consumes() -> None:
    src, dst = tensor("k0"), tensor("k1")
    ring = Ring()
    ring.permute((part(src), part(dst)))
    assert ring.write(part(dst), part(dst)) == []


def test_bytes_beside_the_flight_are_free() -> None:
    buffer = tensor("buffer", 4096)
    ring = Ring()
    ring.permute((part(buffer, 0, 16, 64, 32), part(buffer, 16, 16, 64, 32)))
    assert ring.write(part(buffer, 32, 32, 64, 32)) == []
    assert ring.write(part(buffer, 2048)) == []
    assert ring.write(part(tensor("other"))) == []
    assert len(ring.write(part(buffer, 47 + 64, 2, 64, 3))) == 0
    assert len(ring.write(part(buffer, 31 + 64, 2, 64, 3))) == 1
    # a read beside the destination is no consumer
    assert ring.read(part(buffer, 32, 32, 64, 32)) == []
    assert len(ring.detector) == 1


@pytest.mark.parametrize("world", range(2, 9))
@pytest.mark.parametrize("channels", [1, 2])
def test_a_ring_with_prefetch_has_no_race(world: int, channels: int) -> None:
    """Buffers for all, permutes `depth` ahead; each passes on what the one before received."""
    for depth in range(1, world):
        buffers = [[tensor(f"k{i}.{c}") for c in range(channels)] for i in range(world)]
        ring = Ring()
        races: list[Race] = []

        def send(i: int, ring: Ring = ring, buffers: list[list[Place]] = buffers) -> list[Race]:
            pairs = zip(buffers[i], buffers[i + 1], strict=True)
            return ring.permute(*[(part(a), part(b)) for a, b in pairs])

        for i in range(min(depth, world - 1)):
            races += send(i)
        for i in range(world):
            races += ring.read(*[part(buffer) for buffer in buffers[i]])
            if i + depth < world - 1:
                races += send(i + depth)
        assert races == []
        assert len(ring.detector) == 0


def test_two_buffers_are_too_few_for_a_prefetch_of_two() -> None:
    a, b = tensor("a"), tensor("b")
    ring = Ring()
    assert ring.permute((part(a), part(b))) == []
    # consumes b, and writes a, which was being sent: in flight no more, since b has arrived
    assert ring.permute((part(b), part(a))) == []
    (race,) = ring.permute((part(tensor("c")), part(b)))
    assert "is in flight on those bytes as its source, 'b'" in str(race)


def test_channels_of_one_permute_fly_by_themselves() -> None:
    buffers = [tensor(name) for name in ("s0", "d0", "s1", "d1")]
    s0, d0, s1, d1 = (part(buffer) for buffer in buffers)
    ring = Ring()
    assert ring.permute((s0, d0), (s1, d1)) == []
    assert ring.read(d0) == []
    assert ring.write(s0) == []
    (race,) = ring.write(s1)
    assert "'d1'" in str(race)


def test_channels_of_one_permute_must_not_overlap() -> None:
    a, b, c = (part(tensor(name)) for name in "abc")
    assert len(Ring().permute((a, b), (c, part(b.place)))) == 1
    assert len(Ring().permute((a, b), (b, c))) == 1
    assert len(Ring().permute((b, c), (a, b))) == 1
    assert Ring().permute((a, b), (a, c)) == []


def test_two_sources_of_one_destination_are_one_channel() -> None:
    a, b, c = (part(tensor(name)) for name in "abc")
    ring = Ring()
    assert ring.permute((a, c), (b, c)) == []
    assert len(ring.write(b)) == 1
    assert ring.read(c) == []
    assert ring.write(a) == ring.write(b) == []


def test_aliases_on_chip_are_seen() -> None:
    src, dst, alias = (tensor(name, 64, MemoryRegion.sbuf) for name in ("src", "dst", "alias"))
    src.address, dst.address, alias.address = 0, 64, 96
    ring = Ring()
    ring.permute((part(src), part(dst)))
    (race,) = ring.write(part(alias))
    assert "writes 'alias'" in str(race) and "its destination, 'dst'" in str(race)
    assert ring.read(part(alias)) == []
    assert ring.write(part(alias)) == []


def test_a_dynamic_index_makes_a_race_uncertain() -> None:
    src, dst = tensor("src"), tensor("dst")
    ring = Ring()
    ring.permute((part(src), part(dst)))
    assert [race.certain for race in ring.write(part(src))] == [True]
    assert [race.certain for race in ring.write(part(src, dynamic=True))] == [False]
