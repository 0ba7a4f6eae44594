"""The plugin's switches: environment variables, read once when the plugin is registered."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["VARIABLES", "Settings", "SettingsError", "Variable"]

MODES = ("recorded", "direct", "triton", "off")
PHASES = ("draft", "verify", "extend")
BUFFERS = ("read", "all")
BACKENDS = ("auto", "host")


@dataclass(frozen=True)
class Variable:
    """One environment variable.

    Attributes:
        name: as it stands in the environment.
        values: what may stand there.
        default: what an unset or empty variable means.
        meaning: one sentence for the guide.
    """

    name: str
    values: str
    default: str
    meaning: str


VARIABLES = (
    Variable(
        "QSA_GROUP_SGLANG_MODE",
        "recorded, direct, triton, off",
        "recorded",
        "recorded: the refresh is a node of the graph, and nothing is launched outside it; direct: one launch before "
        "the replay, by a bare driver call; triton: the same by Triton's launcher; off: SGLang stays as it is.",
    ),
    Variable(
        "QSA_GROUP_SGLANG_PHASES",
        "draft, verify, extend, joined by commas",
        "draft,verify,extend",
        "Which refreshes are taken over; the others stay SGLang's.",
    ),
    Variable(
        "QSA_GROUP_SGLANG_BUFFERS",
        "read, all",
        "read",
        "read: only the buffers that the graph reads are refreshed; all: every buffer that SGLang refreshes.",
    ),
    Variable(
        "QSA_GROUP_SGLANG_VERIFY",
        "a whole number",
        "0",
        "Every so many refreshes the values are compared with SGLang's own; a difference raises. 0: never.",
    ),
    Variable(
        "QSA_GROUP_SGLANG_STATS",
        "a whole number",
        "0",
        "Every so many refreshes a line with the counts is logged. 0: never.",
    ),
    Variable(
        "QSA_GROUP_SGLANG_BACKEND",
        "auto, host",
        "auto",
        "host: CPU tensors are refreshed by this package instead of by SGLang's host staging. For tests.",
    ),
)


class SettingsError(ValueError):
    """A variable holds what it may not hold."""


@dataclass(frozen=True)
class Settings:
    """What the variables say.

    Attributes:
        mode: how a refresh is started.
        phases: which refreshes are taken over.
        buffers: which buffers are refreshed where the graph does not read all of them.
        verify_every: refreshes between two comparisons with SGLang's own, 0 for none.
        log_every: refreshes between two lines of statistics, 0 for none.
        backend: "host" for CPU tensors in tests.
    """

    mode: str = "recorded"
    phases: frozenset[str] = frozenset(PHASES)
    buffers: str = "read"
    verify_every: int = 0
    log_every: int = 0
    backend: str = "auto"

    def __post_init__(self) -> None:
        """Refuses what cannot be meant."""
        _choice("QSA_GROUP_SGLANG_MODE", self.mode, MODES)
        _choice("QSA_GROUP_SGLANG_BUFFERS", self.buffers, BUFFERS)
        _choice("QSA_GROUP_SGLANG_BACKEND", self.backend, BACKENDS)
        for phase in sorted(self.phases):
            _choice("QSA_GROUP_SGLANG_PHASES", phase, PHASES)
        for name, count in (("VERIFY", self.verify_every), ("STATS", self.log_every)):
            if count < 0:
                raise SettingsError(f"QSA_GROUP_SGLANG_{name} is {count}, must be 0 or more")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Reads the variables.

        Raises:
            SettingsError: naming the variable and what it may hold.
        """
        text = os.environ if environ is None else environ
        values = {v.name: text.get(v.name, "").strip() or v.default for v in VARIABLES}
        phases = (phase.strip() for phase in values["QSA_GROUP_SGLANG_PHASES"].split(","))
        return cls(
            mode=values["QSA_GROUP_SGLANG_MODE"],
            phases=frozenset(phase for phase in phases if phase),
            buffers=values["QSA_GROUP_SGLANG_BUFFERS"],
            verify_every=_number("QSA_GROUP_SGLANG_VERIFY", values),
            log_every=_number("QSA_GROUP_SGLANG_STATS", values),
            backend=values["QSA_GROUP_SGLANG_BACKEND"],
        )

    @property
    def planner_backend(self) -> str:
        """The backend to ask the planner for, on a GPU."""
        return self.mode if self.mode in ("direct", "triton") else "auto"


def _choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SettingsError(f"{name} is {value!r}, must be one of {', '.join(choices)}")


def _number(name: str, values: Mapping[str, str]) -> int:
    try:
        return int(values[name])
    except ValueError:
        raise SettingsError(f"{name} is {values[name]!r}, must be a whole number") from None
