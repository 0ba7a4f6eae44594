"""The SGLang plugin: QSA's draft, verify and extend graphs refresh their own metadata.

SGLang's plugin loader finds `register` through the entry point group ``sglang.srt.plugins``. An engine that does not
call the loader calls `install`. Nothing here imports SGLang before one of the two is called. See docs/sglang.md.

A capture goes through `hooks`, `state`, `bridge` and `planning`, which makes a `bucket`. A replay goes from the hook to
the bucket.
"""

from __future__ import annotations

from typing import Any

from .compare import VerificationError
from .counts import COUNTS
from .diagnosis import diagnose
from .faults import UnexpectedSGLangError
from .hooks import active_settings, states
from .registration import install, register, uninstall
from .settings import Settings, SettingsError

__all__ = [
    "Settings",
    "SettingsError",
    "UnexpectedSGLangError",
    "VerificationError",
    "diagnose",
    "install",
    "register",
    "stats",
    "uninstall",
]


def stats() -> dict[str, Any]:
    """What the plugin did in this process so far.

    Returns:
        mode (None while not registered); the counts recorded, launched, sglang, sglang_steps, captures, declined,
        nodes, verified and faults; backends (alive, with a state); buckets (planned now); planners, the stats of each
        planner.
    """
    settings = active_settings()
    living = states()
    return {
        "mode": None if settings is None else settings.mode,
        **COUNTS.as_dict(),
        "backends": len(living),
        "buckets": sum(len(sizes) for state in living for sizes in state.buckets.values()),
        "planners": [planner for state in living for planner in state.stats()],
    }
