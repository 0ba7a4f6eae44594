"""Numbers of what the plugin did in this process."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

__all__ = ["COUNTS", "Counts"]


@dataclass(slots=True)
class Counts:
    """Numbers of replays and captures.

    Attributes:
        recorded: replays whose graph holds the refresh.
        launched: replays with a launch of this package before them.
        sglang: replays that SGLang refreshed itself, of backends that the plugin looks after.
        sglang_steps: draft steps that SGLang refreshed beside steps of this package.
        captures: buckets planned.
        declined: buckets left to SGLang.
        nodes: refreshes recorded in graphs.
        verified: refreshes compared with SGLang's own.
        faults: faults of the plugin itself, each of which left a bucket to SGLang.
    """

    recorded: int = 0
    launched: int = 0
    sglang: int = 0
    sglang_steps: int = 0
    captures: int = 0
    declined: int = 0
    nodes: int = 0
    verified: int = 0
    faults: int = 0

    def as_dict(self) -> dict[str, int]:
        """All numbers by name."""
        return asdict(self)

    def reset(self) -> None:
        """Sets all numbers to 0. For tests."""
        for field in fields(self):
            setattr(self, field.name, 0)


COUNTS = Counts()
