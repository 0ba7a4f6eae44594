"""What `qsa-group doctor` says of the plugin: does SGLang load it, does this SGLang fit, how does a refresh start."""

from __future__ import annotations

import os
from importlib import metadata

import torch

from qsa_group.launch import DirectBackend, TritonBackend

from .hooks import active_settings
from .probe import ProbeError, probe
from .settings import Settings, SettingsError

__all__ = ["GROUP", "TESTED", "diagnose"]

GROUP = "sglang.srt.plugins"
"""The group of entry points that SGLang's plugin loader reads."""

TESTED = ("0.5.23",)
"""Releases of SGLang that the tests ran with."""


def diagnose() -> list[str]:
    """One finding a line."""
    return [_loader(), _settings(), _fit(), _start()]


def _loader() -> str:
    points = [point for point in metadata.entry_points(group=GROUP) if point.value.startswith("qsa_group.sglang:")]
    if not points:
        return (
            f"SGLang's loader does not find the plugin: no entry point in {GROUP}; install the wheel, or call install"
        )
    name = points[0].name
    allowed = os.environ.get("SGLANG_PLUGINS", "").strip()
    if allowed and name not in {part.strip() for part in allowed.split(",")}:
        return f"SGLang's loader skips the plugin: SGLANG_PLUGINS={allowed} does not name {name}"
    return f"SGLang's loader loads the plugin as {name}"


def _settings() -> str:
    try:
        settings = active_settings() or Settings.from_env()
    except SettingsError as error:
        return f"the plugin would stay out: {error}"
    if settings.mode == "off":
        return "mode: off, SGLang stays as it is"
    phases, compared = ", ".join(sorted(settings.phases)), settings.verify_every or "never"
    return f"mode: {settings.mode}; phases: {phases}; buffers: {settings.buffers}; compared every: {compared}"


def _fit() -> str:
    try:
        probe()
    except ProbeError as error:
        return f"this SGLang does not fit, and would be left alone: {error}"
    version = metadata.version("sglang")
    tested = "tested" if version in TESTED else f"not tested, only {', '.join(TESTED)} is"
    return f"this SGLang fits: all names, signatures and fields are there (version {version}, {tested})"


def _start() -> str:
    if not torch.cuda.is_available():
        return "no CUDA device: SGLang's host staging refreshes CPU tensors, and the plugin stays out of its way"
    device = torch.device("cuda", torch.cuda.current_device())
    direct, triton = DirectBackend().refusal(device), TritonBackend().refusal(device)
    if direct is None:
        return "refreshes would be started directly, or recorded in the graphs by direct launches"
    if triton is None:
        return f"refreshes would be started by Triton's launcher: {direct}"
    return f"SGLang would refresh itself: {triton}"
