"""The six hooks, and the settings that they go by.

Each hook is an AROUND hook of SGLang's registry. It receives SGLang's own method, and calls the method wherever the
plugin has nothing to do. The classes keep all attributes that workers and wrappers ask for.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from .phase import DRAFT, EXTEND, FORWARD_MODES, VERIFY
from .probe import BACKEND_CLASS, CONTAINER_CLASS
from .settings import Settings
from .state import ATTRIBUTE, State

__all__ = ["HOOKS", "activate", "active_settings", "deactivate", "states"]

Original = Callable[..., Any]

_settings: Settings | None = None
"""The settings in force, None while the plugin is not registered. Backends without a state go by them."""

_draft_mode: Any = None
"""SGLang's forward mode of the draft steps."""

_phase_of_mode: dict[Any, str] = {}
"""The phase of each forward mode that a backend of its own serves."""

_states: weakref.WeakSet[State] = weakref.WeakSet()


def activate(settings: Settings, forward_mode: Any) -> None:
    """Puts settings in force.

    Args:
        settings: the settings.
        forward_mode: SGLang's ``ForwardMode``.
    """
    global _settings, _draft_mode
    _settings = settings
    _draft_mode = getattr(forward_mode, FORWARD_MODES[DRAFT])
    _phase_of_mode.update({getattr(forward_mode, FORWARD_MODES[phase]): phase for phase in (VERIFY, EXTEND)})


def deactivate() -> None:
    """Lets no backend have a state any more that has none yet."""
    global _settings
    _settings = None


def active_settings() -> Settings | None:
    """The settings in force; None while the plugin is not registered."""
    return _settings


def states() -> list[State]:
    """The states of the backends that live."""
    return list(_states)


def _init_state(original: Original, self: Any, max_bs: int, max_num_tokens: int) -> Any:
    """SGLang makes the buffers anew, so that every plan over the old ones is stale."""
    state: State | None = self.__dict__.get(ATTRIBUTE)
    if state is not None:
        state.restart()
    return original(self, max_bs, max_num_tokens)


def _draft_out_graph(original: Original, self: Any, forward_batch: Any, in_capture: bool = False) -> None:
    """As `_replay` for the draft, written out: this runs once a round, so that every call counts."""
    if in_capture:
        _capture(original, self, DRAFT, _draft_mode, forward_batch)
        return
    state = self.__dict__.get(ATTRIBUTE)
    bucket = None if state is None else state.draft_in_service.get(forward_batch.batch_size)
    if bucket is None:
        _replay(original, self, DRAFT, forward_batch)
        return
    try:
        if bucket.replay(self, forward_batch):
            return
    except Exception as error:
        if not state.give_up(DRAFT, forward_batch.batch_size, error):
            raise
    state.before_sglang()
    original(self, forward_batch)


def _backend_out_graph(original: Original, self: Any, forward_batch: Any, in_capture: bool = False) -> None:
    phase = _phase_of_mode.get(forward_batch.forward_mode)
    if phase is None:
        original(self, forward_batch, in_capture=in_capture)
    elif in_capture:
        _capture(original, self, phase, forward_batch.forward_mode, forward_batch)
    else:
        _replay(original, self, phase, forward_batch)


def _draft_in_graph(original: Original, self: Any, forward_batch: Any) -> None:
    original(self, forward_batch)
    _record(self, DRAFT, forward_batch)


def _backend_in_graph(original: Original, self: Any, forward_batch: Any) -> None:
    original(self, forward_batch)
    phase = _phase_of_mode.get(forward_batch.forward_mode)
    if phase is not None:
        _record(self, phase, forward_batch)


HOOKS: dict[str, Callable[..., Any]] = {
    f"{CONTAINER_CLASS}.init_cuda_graph_state": _init_state,
    f"{CONTAINER_CLASS}.init_forward_metadata_out_graph": _draft_out_graph,
    f"{CONTAINER_CLASS}.init_forward_metadata_in_graph": _draft_in_graph,
    f"{BACKEND_CLASS}.init_cuda_graph_state": _init_state,
    f"{BACKEND_CLASS}.init_forward_metadata_out_graph": _backend_out_graph,
    f"{BACKEND_CLASS}.init_forward_metadata_in_graph": _backend_in_graph,
}
"""The hook of each method, by class and method."""


def _capture(original: Original, owner: Any, phase: str, forward_mode: Any, forward_batch: Any) -> None:
    original(owner, forward_batch, in_capture=True)
    state = _state_for_capture(original, owner, phase)
    if state is not None:
        state.capture(owner, phase, forward_mode, forward_batch)


def _state_for_capture(original: Original, owner: Any, phase: str) -> State | None:
    """The state of a backend, made at its first capture; None where the phase is SGLang's."""
    if _settings is None:
        return None
    state: State | None = owner.__dict__.get(ATTRIBUTE)
    if state is None and phase in _settings.phases:
        state = State(_settings, original)
        setattr(owner, ATTRIBUTE, state)
        _states.add(state)
    return state


def _replay(original: Original, owner: Any, phase: str, forward_batch: Any) -> None:
    state: State | None = owner.__dict__.get(ATTRIBUTE)
    if state is None:
        original(owner, forward_batch)
        return
    bucket = state.in_service[phase].get(forward_batch.batch_size)
    try:
        if bucket is not None and bucket.replay(owner, forward_batch):
            return
    except Exception as error:
        if not state.give_up(phase, forward_batch.batch_size, error):
            raise
    state.before_sglang()
    original(owner, forward_batch)


def _record(owner: Any, phase: str, forward_batch: Any) -> None:
    state: State | None = owner.__dict__.get(ATTRIBUTE)
    if state is not None:
        state.record(phase, forward_batch)
