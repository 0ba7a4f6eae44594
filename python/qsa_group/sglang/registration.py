"""Puts the hooks into SGLang, and takes them out again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import hooks
from .log import logger, say_once
from .probe import BACKEND_MODULE, ProbeError, SGLangParts, probe
from .settings import Settings, SettingsError

__all__ = ["install", "register", "uninstall"]

_hooked: dict[str, SGLangParts] = {}
"""What was hooked, by the name of the module with the two classes."""


def register(settings: Settings | None = None, *, module: str = BACKEND_MODULE) -> bool:
    """Registers the hooks with SGLang's registry; the entry point that SGLang's plugin loader calls.

    The loader applies the hooks afterwards. A second call changes nothing but the settings. If this SGLang does not
    fit, or a variable holds an unknown value, one warning says why, and SGLang runs as if the plugin were not there.

    Args:
        settings: the settings; read from the environment by default.
        module: where the two classes are, for a fork that moved them.

    Returns:
        Whether the hooks are registered.
    """
    try:
        chosen = Settings.from_env() if settings is None else settings
    except SettingsError as error:
        say_once(f"the plugin stays out of SGLang: {error}", key="register")
        return False
    if chosen.mode == "off" or not chosen.phases:
        hooks.deactivate()
        logger.info("switched off")
        return False
    try:
        parts = probe(module)
    except ProbeError as error:
        say_once(f"the plugin stays out of SGLang, which does not fit: {error}", key="register")
        return False
    hooks.activate(chosen, parts.forward_mode)
    _hooked[module] = parts
    for name, hook in hooks.HOOKS.items():
        if not _is_hooked(parts, name, hook):
            source = parts.hook_source("qsa_group", "qsa-group")
            parts.registry.register(f"{module}.{name}", hook, parts.hook_type.AROUND, source=source)
    logger.info("registered: %s", chosen)
    return True


def install(settings: Settings | None = None, *, module: str = BACKEND_MODULE) -> bool:
    """Registers the hooks and applies them: for an engine that does not call SGLang's plugin loader.

    Call it in every process that runs a model, before the first graph is captured.

    Args:
        settings: the settings; read from the environment by default.
        module: where the two classes are, for a fork that moved them.

    Returns:
        Whether the hooks are in place.
    """
    if not register(settings, module=module):
        return False
    _hooked[module].registry.apply_hooks()
    return True


def uninstall() -> None:
    """Takes the hooks out of SGLang, as far as no other plugin has wrapped them, and forgets all plans.

    A graph that holds a refresh keeps it. SGLang refreshes the buffers of such a graph as well from then on.
    """
    hooks.deactivate()
    for state in hooks.states():
        state.close()
    for module, parts in _hooked.items():
        for name, hook in hooks.HOOKS.items():
            _unhook(parts, f"{module}.{name}", name, hook)
    _hooked.clear()


def _is_hooked(parts: SGLangParts, name: str, hook: Callable[..., Any]) -> bool:
    """Whether a hook is in the class already or waits for it in the registry, by this module's name or another."""
    if _wrapper(_method(parts, name), hook) is not None:
        return True
    modules = [module for module, other in _hooked.items() if _same_classes(parts, other)]
    waiting = getattr(parts.registry, "_hooks", {})
    return any(entry[1] is hook for module in modules for entry in waiting.get(f"{module}.{name}", ()))


def _same_classes(left: SGLangParts, right: SGLangParts) -> bool:
    return left.container is right.container and left.backend is right.backend


def _method(parts: SGLangParts, name: str) -> Any:
    class_name, method_name = name.split(".")
    return getattr(getattr(parts.module, class_name), method_name)


def _wrapper(method: Any, hook: Callable[..., Any]) -> Any:
    """The wrapper that calls this hook, in a chain of wrappers; None where there is none."""
    while method is not None:
        cells = getattr(method, "__closure__", None) or ()
        if any(cell.cell_contents is hook for cell in cells):
            return method
        method = getattr(method, "__wrapped__", None)
    return None


def _unhook(parts: SGLangParts, target: str, name: str, hook: Callable[..., Any]) -> None:
    """Takes one hook out of the class and out of the registry."""
    class_name, method_name = name.split(".")
    owner, method = getattr(parts.module, class_name), _method(parts, name)
    if _wrapper(method, hook) is not method:
        # The hook was not applied, or another plugin wrapped it. Without a state it passes everything on.
        logger.debug("%s is not unwrapped", name)
    else:
        inner = method.__wrapped__
        if inner is getattr(super(owner, owner), method_name, None):
            # The class had inherited the method.
            delattr(owner, method_name)
        else:
            setattr(owner, method_name, inner)
        getattr(parts.registry, "_patched", set()).discard(target)
    registered = getattr(parts.registry, "_hooks", {})
    others = [entry for entry in registered.get(target, ()) if entry[1] is not hook]
    if others:
        registered[target] = others
    else:
        registered.pop(target, None)
