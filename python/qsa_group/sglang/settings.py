"""The plugin's settings: environment variables, read once when the plugin is registered."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from qsa_group import QsaGroupError

from .phase import PHASES

__all__ = ["VARIABLES", "Settings", "SettingsError", "Variable"]

_NUMBER = "0 or more"


@dataclass(frozen=True)
class Variable:
    """One environment variable.

    Attributes:
        name: as it stands in the environment.
        values: what may stand there, in words.
        default: what an unset or empty variable means.
        meaning: what the guide says about it.
        choices: the values that may stand there, empty for a number.
    """

    name: str
    values: str
    default: str
    meaning: str
    choices: tuple[str, ...] = ()

    @classmethod
    def choice(cls, name: str, choices: tuple[str, ...], default: str, meaning: str, note: str = "") -> Variable:
        """A variable that holds one of several words, or several of them where `note` says so."""
        return cls(name, ", ".join(choices) + note, default, meaning, choices)

    def check(self, value: str) -> str:
        """The value, if the variable may hold it.

        Raises:
            SettingsError: it may not.
        """
        if value not in self.choices:
            raise SettingsError(f"{self.name} is {value!r}, must be one of {', '.join(self.choices)}")
        return value

    def number(self, value: str) -> int:
        """The value as a whole number.

        Raises:
            SettingsError: it is none.
        """
        try:
            return int(value)
        except ValueError:
            raise SettingsError(f"{self.name} is {value!r}, must be {_NUMBER}") from None

    def check_count(self, value: int) -> None:
        """Refuses a number below 0.

        Raises:
            SettingsError: it is below 0.
        """
        if value < 0:
            raise SettingsError(f"{self.name} is {value}, must be 0 or more")


_MODE = Variable.choice(
    "QSA_GROUP_SGLANG_MODE",
    ("recorded", "direct", "triton", "off"),
    "recorded",
    "recorded: the graph itself refreshes its buffers, and nothing is launched before a replay; direct: one launch "
    "before each replay, by a bare driver call; triton: the same launch by Triton's launcher; off: SGLang runs without "
    "the plugin.",
)
_PHASES = Variable.choice(
    "QSA_GROUP_SGLANG_PHASES",
    PHASES,
    ",".join(PHASES),
    "The refreshes that the plugin takes over. SGLang does the others.",
    note=", joined by commas",
)
_BUFFERS = Variable.choice(
    "QSA_GROUP_SGLANG_BUFFERS",
    ("read", "all"),
    "read",
    "read: the plugin refreshes the buffers that the graph reads; all: it refreshes all that SGLang refreshes.",
)
_VERIFY = Variable(
    "QSA_GROUP_SGLANG_VERIFY",
    _NUMBER,
    "0",
    "The plugin compares every so many refreshes of a backend with SGLang's own. A difference raises. 0: never.",
)
_STATS = Variable(
    "QSA_GROUP_SGLANG_STATS",
    _NUMBER,
    "0",
    "The plugin logs its counts at level INFO after every so many refreshes of the process. 0: never.",
)
_BACKEND = Variable.choice(
    "QSA_GROUP_SGLANG_BACKEND",
    ("auto", "host"),
    "auto",
    "auto: the plugin refreshes tensors on a GPU alone; host: it refreshes CPU tensors as well. For tests.",
)
_STRICT = Variable.choice(
    "QSA_GROUP_SGLANG_STRICT",
    ("0", "1"),
    "0",
    "1: a fault of the plugin raises; 0: the plugin logs the fault and leaves the bucket to SGLang. For tests.",
)

VARIABLES = (_MODE, _PHASES, _BUFFERS, _VERIFY, _STATS, _BACKEND, _STRICT)


class SettingsError(QsaGroupError, ValueError):
    """A variable holds a value that it may not hold."""


@dataclass(frozen=True)
class Settings:
    """What the variables say.

    Attributes:
        mode: how a refresh is started.
        phases: the refreshes that the plugin takes over.
        buffers: "read" or "all".
        verify_every: refreshes from one comparison with SGLang's own to the next, 0 for none.
        log_every: refreshes from one line of counts to the next, 0 for none.
        backend: "host" for CPU tensors in tests.
        strict: whether a fault of the plugin raises.
    """

    mode: str = "recorded"
    phases: frozenset[str] = frozenset(PHASES)
    buffers: str = "read"
    verify_every: int = 0
    log_every: int = 0
    backend: str = "auto"
    strict: bool = False

    def __post_init__(self) -> None:
        """Refuses values that no variable may hold.

        Raises:
            SettingsError: naming the variable and its values.
        """
        _MODE.check(self.mode)
        _BUFFERS.check(self.buffers)
        _BACKEND.check(self.backend)
        for phase in sorted(self.phases):
            _PHASES.check(phase)
        _VERIFY.check_count(self.verify_every)
        _STATS.check_count(self.log_every)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Reads the variables.

        Args:
            environ: where they stand, the process's environment by default.

        Raises:
            SettingsError: naming the variable and its values.
        """
        source = os.environ if environ is None else environ
        values = {variable.name: source.get(variable.name, "").strip() or variable.default for variable in VARIABLES}
        phases = (phase.strip() for phase in values[_PHASES.name].split(","))
        return cls(
            mode=values[_MODE.name],
            phases=frozenset(phase for phase in phases if phase),
            buffers=values[_BUFFERS.name],
            verify_every=_VERIFY.number(values[_VERIFY.name]),
            log_every=_STATS.number(values[_STATS.name]),
            backend=values[_BACKEND.name],
            strict=_STRICT.check(values[_STRICT.name]) == "1",
        )

    @property
    def planner_backend(self) -> str:
        """The backend of `ReplayPlanner` for tensors on a GPU."""
        return self.mode if self.mode in ("direct", "triton") else "auto"
