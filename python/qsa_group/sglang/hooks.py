"""The hooks, and putting them into SGLang and out of it again.

Each hook is an AROUND hook of SGLang's registry: it gets the original, and calls it wherever the plugin has nothing to
do. The classes stay what they are, with all attributes that workers and wrappers ask for.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

from .compare import Comparer
from .counts import COUNTS, logger, say_once
from .probe import BACKEND_CLASS, BACKEND_MODULE, CONTAINER_CLASS, Found, ProbeError, probe
from .refresh import ATTRIBUTE, State
from .settings import Settings, SettingsError

__all__ = ["active_settings", "install", "register", "states", "uninstall"]

Original = Callable[..., Any]

_settings: Settings | None = None
"""The switches in force, None while the plugin is not registered. New captures go by them."""

_modes: dict[Any, str] = {}
"""Phase of each forward mode that a backend of its own serves."""

_draft_mode: Any = None
_hooked: dict[str, Found] = {}
_states: weakref.WeakSet[State] = weakref.WeakSet()


class _Watch(State):
    """A state whose refreshes are compared or logged; the others do not pay for that."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.draft = {}
        self.comparer = Comparer(settings.verify_every) if settings.verify_every else None

    def restart(self) -> None:
        super().restart()
        if self.comparer is not None:
            self.comparer.forget()

    def replay(self, phase: str, owner: Any, forward_batch: Any, original: Original) -> bool:
        if self.comparer is None:
            done = super().replay(phase, owner, forward_batch, original)
        else:
            self.comparer.settle()
            bucket = self.buckets[phase].get(forward_batch.batch_size)
            done = bucket is not None and self.comparer.replay(bucket, owner, forward_batch, original)
        every = self.settings.log_every
        if every and (COUNTS.recorded + COUNTS.launched) % every == 0:
            logger.info("%s", COUNTS.as_dict())
        return done


def _state_for_capture(owner: Any, phase: str) -> State | None:
    if _settings is None:
        return None
    state: State | None = owner.__dict__.get(ATTRIBUTE)
    if state is None and phase in _settings.phases:
        watched = _settings.verify_every or _settings.log_every
        state = (_Watch if watched else State)(_settings)
        setattr(owner, ATTRIBUTE, state)
        _states.add(state)
    return state


def _capture(original: Original, owner: Any, phase: str, mode: Any, forward_batch: Any) -> None:
    original(owner, forward_batch, in_capture=True)
    state = _state_for_capture(owner, phase)
    if state is not None:
        state.capture(owner, phase, mode, forward_batch)


def _replay(original: Original, owner: Any, phase: str, forward_batch: Any) -> None:
    state = owner.__dict__.get(ATTRIBUTE)
    if state is None:
        original(owner, forward_batch)
    elif not state.replay(phase, owner, forward_batch, original):
        COUNTS.sglang += 1
        original(owner, forward_batch)


def _init_state(original: Original, self: Any, max_bs: int, max_num_tokens: int) -> Any:
    """Buffers are made anew, so whatever was planned on the old ones is stale."""
    state: State | None = self.__dict__.get(ATTRIBUTE)
    if state is not None:
        state.restart()
    return original(self, max_bs, max_num_tokens)


def _draft_out_graph(original: Original, self: Any, forward_batch: Any, in_capture: bool = False) -> None:
    if in_capture:
        _capture(original, self, "draft", _draft_mode, forward_batch)
        return
    state = self.__dict__.get(ATTRIBUTE)
    bucket = None if state is None else state.draft.get(forward_batch.batch_size)
    if bucket is None:
        _replay(original, self, "draft", forward_batch)
    else:
        bucket.replay_draft(self, forward_batch)


def _backend_out_graph(original: Original, self: Any, forward_batch: Any, in_capture: bool = False) -> None:
    phase = _modes.get(forward_batch.forward_mode)
    if phase is None:
        original(self, forward_batch, in_capture=in_capture)
    elif in_capture:
        _capture(original, self, phase, forward_batch.forward_mode, forward_batch)
    else:
        _replay(original, self, phase, forward_batch)


def _draft_in_graph(original: Original, self: Any, forward_batch: Any) -> None:
    original(self, forward_batch)
    _record(self, "draft", forward_batch)


def _backend_in_graph(original: Original, self: Any, forward_batch: Any) -> None:
    original(self, forward_batch)
    phase = _modes.get(forward_batch.forward_mode)
    if phase is not None:
        _record(self, phase, forward_batch)


def _record(owner: Any, phase: str, forward_batch: Any) -> None:
    state: State | None = owner.__dict__.get(ATTRIBUTE)
    if state is not None:
        bucket = state.buckets[phase].get(forward_batch.batch_size)
        if bucket is not None:
            bucket.record(forward_batch)


_HOOKS: dict[str, Callable[..., Any]] = {
    f"{CONTAINER_CLASS}.init_cuda_graph_state": _init_state,
    f"{CONTAINER_CLASS}.init_forward_metadata_out_graph": _draft_out_graph,
    f"{CONTAINER_CLASS}.init_forward_metadata_in_graph": _draft_in_graph,
    f"{BACKEND_CLASS}.init_cuda_graph_state": _init_state,
    f"{BACKEND_CLASS}.init_forward_metadata_out_graph": _backend_out_graph,
    f"{BACKEND_CLASS}.init_forward_metadata_in_graph": _backend_in_graph,
}


def active_settings() -> Settings | None:
    """The switches in force; None while the plugin is not registered."""
    return _settings


def states() -> list[State]:
    """What is kept for the backends that live."""
    return list(_states)


def register(settings: Settings | None = None, *, module: str = BACKEND_MODULE) -> bool:
    """Registers the hooks with SGLang's registry; the entry point that SGLang's plugin loader calls.

    The loader applies them afterwards. Calling it again changes nothing but the switches. Where this SGLang does not
    fit, or a switch holds something unknown, one warning says why and SGLang runs as if the plugin were not there.

    Args:
        settings: the switches; read from the environment by default.
        module: where the two classes are, for a fork that moved them.

    Returns:
        Whether the hooks are registered.
    """
    global _settings, _draft_mode
    try:
        chosen = Settings.from_env() if settings is None else settings
    except SettingsError as error:
        say_once(f"the plugin stays out of SGLang: {error}", key="register")
        return False
    if chosen.mode == "off" or not chosen.phases:
        _settings = None
        logger.info("switched off")
        return False
    try:
        found = probe(module)
    except ProbeError as error:
        say_once(f"the plugin stays out of SGLang, which does not fit: {error}", key="register")
        return False
    _settings = chosen
    _draft_mode = found.forward_mode.DECODE
    _modes.update({found.forward_mode.TARGET_VERIFY: "verify", found.forward_mode.DRAFT_EXTEND_V2: "extend"})
    _hooked[module] = found
    for name, hook in _HOOKS.items():
        if not _is_hooked(found, name, hook):
            source = found.hook_source("qsa_group", "qsa-group")
            found.registry.register(f"{module}.{name}", hook, found.hook_type.AROUND, source=source)
    logger.info("registered: %s", chosen)
    return True


def install(settings: Settings | None = None, *, module: str = BACKEND_MODULE) -> bool:
    """Registers the hooks and applies them: for an engine that does not call SGLang's plugin loader.

    Call it in every process that runs a model, before the first graph is captured.

    Args:
        settings: the switches; read from the environment by default.
        module: where the two classes are, for a fork that moved them.

    Returns:
        Whether the hooks are in place.
    """
    if not register(settings, module=module):
        return False
    _hooked[module].registry.apply_hooks()
    return True


def uninstall() -> None:
    """Takes the hooks out of SGLang again, as far as no other plugin has wrapped them, and forgets all plans.

    Graphs that hold a recorded refresh keep it, and are refreshed by SGLang as well from then on.
    """
    global _settings
    _settings = None
    for state in states():
        state.close()
    for module, found in _hooked.items():
        for name, hook in _HOOKS.items():
            _unhook(found, f"{module}.{name}", name, hook)
    _hooked.clear()


def _is_hooked(found: Found, name: str, hook: Callable[..., Any]) -> bool:
    """Whether a hook is in the class already or waits for it in the registry, by this path or by another."""
    if _wrapper(_method(found, name), hook) is not None:
        return True
    paths = [path for path, other in _hooked.items() if _same_classes(found, other)]
    waiting = getattr(found.registry, "_hooks", {})
    return any(entry[1] is hook for path in paths for entry in waiting.get(f"{path}.{name}", ()))


def _same_classes(one: Found, other: Found) -> bool:
    return one.container is other.container and one.backend is other.backend


def _method(found: Found, name: str) -> Any:
    owner, method = name.split(".")
    return getattr(getattr(found.module, owner), method)


def _wrapper(method: Any, hook: Callable[..., Any]) -> Any:
    """The wrapper with this hook in a chain of wrappers."""
    while method is not None:
        cells = getattr(method, "__closure__", None) or ()
        if any(cell.cell_contents is hook for cell in cells):
            return method
        method = getattr(method, "__wrapped__", None)
    return None


def _unhook(found: Found, target: str, name: str, hook: Callable[..., Any]) -> None:
    hooks = getattr(found.registry, "_hooks", {})
    others = [entry for entry in hooks.get(target, ()) if entry[1] is not hook]
    owner_name, method_name = name.split(".")
    owner, method = getattr(found.module, owner_name), _method(found, name)
    if _wrapper(method, hook) is not method:
        # Not applied, or wrapped by another plugin. Without a state the hook passes everything on.
        logger.log(logging.DEBUG, "%s is not unwrapped", name)
    else:
        inner = method.__wrapped__
        if inner is getattr(super(owner, owner), method_name, None):
            delattr(owner, method_name)  # It was inherited.
        else:
            setattr(owner, method_name, inner)
        getattr(found.registry, "_patched", set()).discard(target)
    if others:
        hooks[target] = others
    else:
        hooks.pop(target, None)
