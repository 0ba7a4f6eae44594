"""``qsa-group doctor``: what would run here, and why nothing better."""

from __future__ import annotations

import argparse
import warnings
from importlib import import_module, metadata
from typing import Any

import torch

from qsa_group import QsaGroupError, ReplayPlanner, RequestTable, StepBuffers
from qsa_group.demo.report import versions

from .options import Commands

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Adds the command."""
    doctor = commands.add_parser(
        "doctor",
        help="say what would run here, and why nothing better",
        description="Versions, devices, which backend each device gets and why not a better one, and whether SGLang "
        "would load the plugin. Exit code 1 if something that should work does not.",
    )
    doctor.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Prints versions, devices, the backend of each device, and the SGLang plugin; returns the exit code."""
    broken: list[str] = []
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    sections = {
        "versions": [f"{name}: {version}" for name, version in versions().items()],
        "devices": ["cpu: always there", *_devices(gpus)],
    }
    for device in ("cpu", *(f"cuda:{index}" for index in range(gpus))):
        sections[f"backends on {device}"] = _backends(torch.device(device), broken)
    sections["SGLang plugin"] = _plugin(broken)
    sections["broken" if broken else "nothing is broken"] = broken
    print("\n\n".join("\n  ".join([title, *lines]) for title, lines in sections.items()), flush=True)
    return 1 if broken else 0


def _devices(gpus: int) -> list[str]:
    if not gpus and torch.version.cuda is None:
        return ["no CUDA device: this torch was built without CUDA"]
    if not gpus:
        return [f"no CUDA device: torch was built for CUDA {torch.version.cuda}, but finds no usable driver or GPU"]
    lines = []
    for index in range(gpus):
        major, minor = torch.cuda.get_device_capability(index)
        lines.append(f"cuda:{index}: {torch.cuda.get_device_name(index)}, compute capability {major}.{minor}")
    return [*lines, f"torch was built for CUDA {torch.version.cuda}"]


def _backends(device: torch.device, broken: list[str]) -> list[str]:
    lines = []
    for backend in ("auto", "direct", "triton", "host"):
        try:
            used, notes = _try(backend, device)
        except QsaGroupError as error:
            lines.append(f"{backend}: not here. {error}")
            if backend == "auto":
                broken.append(f"no backend at all on {device}: {error}")
        except Exception as error:  # A doctor reports what it finds.
            lines.append(f"{backend}: fails. {type(error).__name__}: {error}")
            broken.append(f"{backend} on {device}: {type(error).__name__}: {error}")
        else:
            lines.append("; ".join([f"{backend}: works" + (f", uses {used}" if used != backend else ""), *notes]))
    return lines


def _try(backend: str, device: torch.device) -> tuple[str, list[str]]:
    """Refreshes one small bucket; returns the backend that did it, and the fallbacks that were taken."""
    table = torch.arange(256, dtype=torch.int32, device=device).view(2, 128)
    planner = ReplayPlanner(RequestTable(table, compress_ratio=4, page_size=64), backend=backend)
    lengths = torch.full((2,), -1, dtype=torch.int32, device=device)
    plan = planner.plan([StepBuffers(1, sequence_lengths=lengths)])
    plan.run(torch.tensor([7, 9], device=device), torch.tensor([1, 1], device=device))
    if lengths.tolist() != [8, 10]:
        raise RuntimeError(f"a refresh gave lengths {lengths.tolist()} instead of [8, 10]")
    return plan.backend, plan.explain().data["fallbacks"]


def _plugin(broken: list[str]) -> list[str]:
    try:
        lines = [f"SGLang {metadata.version('sglang')} is installed"]
    except metadata.PackageNotFoundError:
        return ["SGLang is not installed here: nothing would load the plugin"]
    try:
        module: Any = import_module("qsa_group.sglang")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SGLang's own, about devices that are not here.
            lines += module.diagnose()
    except Exception as error:  # A doctor reports what it finds.
        broken.append(f"the SGLang plugin's own diagnosis fails: {type(error).__name__}: {error}")
    return lines
