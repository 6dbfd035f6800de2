"""What sessions take and give."""

from __future__ import annotations

import dataclasses
import enum


class Quiesce(enum.IntEnum):
    """How others can bring this process to rest before they put it to sleep."""

    NONE = 0  # they cannot: only its own sleep() works
    SYNCHRONIZE = 1  # it promises to submit nothing that needs memory asleep
    GUARD = 2  # it submits work only inside work()
    CALLBACK = 3  # on_pause() stops it


class Policy(enum.IntEnum):
    """What becomes of a tag's bytes."""

    KEEP = 0  # stays resident
    OFFLOAD = 1  # its bytes go to host memory
    DISCARD = 2  # its bytes are dropped; it comes back zeroed


@dataclasses.dataclass(frozen=True)
class SessionInfo:
    """What the daemon said when the session was opened."""

    worker_id: int
    device_kind: str  # "cuda" or "host"
    device_uuid: str
    device_total_bytes: int
    granularity_bytes: int  # segments are multiples of it


@dataclasses.dataclass(frozen=True)
class Segment:
    address: int
    size: int  # bytes, a multiple of the granularity
    tag: str


@dataclasses.dataclass(frozen=True)
class SleepResult:
    """What a sleep or a wake has done."""

    device_bytes: int  # freed by a sleep, taken by a wake
    copied_bytes: int  # between device and host memory
    discarded_bytes: int  # dropped by a sleep, zeroed by a wake


@dataclasses.dataclass(frozen=True)
class TagUsage:
    segments: int
    resident_bytes: int
    offloaded_bytes: int
    discarded_bytes: int


@dataclasses.dataclass(frozen=True)
class Usage:
    """The device, and the tags of one session."""

    device_total_bytes: int
    device_free_bytes: int  # as the driver sees it
    available_bytes: int  # what could be allocated now without a reservation
    tags: dict[str, TagUsage]
