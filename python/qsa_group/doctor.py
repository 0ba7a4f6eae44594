"""What would run here, and why nothing better: the answers of ``qsa-group doctor``."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from importlib import import_module, metadata
from typing import Any

import torch

from .errors import QsaGroupError
from .planner import ReplayPlanner, RequestTable, StepBuffers
from .report import versions

__all__ = ["Diagnosis", "diagnose"]


@dataclass
class Diagnosis:
    """Findings by section, and whether something that should work does not.

    Attributes:
        sections: title and lines of each section, in order.
        broken: what does not work although it should.
    """

    sections: list[tuple[str, list[str]]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def text(self) -> str:
        """All of it for people."""
        parts = ["\n".join([title, *(f"  {line}" for line in lines)]) for title, lines in self.sections]
        parts.append(
            "\n".join(["broken", *(f"  {line}" for line in self.broken)]) if self.broken else "nothing is broken"
        )
        return "\n\n".join(parts)


def diagnose() -> Diagnosis:
    """Looks around: versions, devices, the backend that each device gets, and the SGLang plugin."""
    found = Diagnosis()
    found.sections.append(("versions", [f"{name}: {version}" for name, version in versions().items()]))
    found.sections.append(("devices", _devices()))
    devices = [torch.device("cpu"), *(torch.device("cuda", index) for index in range(_cuda_devices()))]
    for device in devices:
        found.sections.append((f"backends on {device}", _backends(device, found.broken)))
    found.sections.append(("SGLang plugin", _plugin(found.broken)))
    return found


def _cuda_devices() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _devices() -> list[str]:
    lines = ["cpu: always there"]
    count = _cuda_devices()
    for index in range(count):
        major, minor = torch.cuda.get_device_capability(index)
        lines.append(f"cuda:{index}: {torch.cuda.get_device_name(index)}, compute capability {major}.{minor}")
    if count:
        lines.append(f"CUDA driver: {_driver_version()}; torch was built for CUDA {torch.version.cuda}")
    elif torch.version.cuda is None:
        lines.append("no CUDA device: this torch was built without CUDA")
    else:
        lines.append(
            f"no CUDA device: torch was built for CUDA {torch.version.cuda}, but finds no usable driver or GPU"
        )
    return lines


def _driver_version() -> str:
    try:
        version = int(getattr(torch._C, "_cuda_getDriverVersion")())  # noqa: B009 (it is absent from CPU builds)
    except (AttributeError, RuntimeError):
        return "version unknown"
    return f"supports CUDA {version // 1000}.{version % 1000 // 10}"


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
            lines.append(f"{backend}: works" + (f", uses {used}" if used != backend else "") + _joined(notes))
    return lines


def _joined(notes: list[str]) -> str:
    return "".join(f"; {note}" for note in notes)


def _try(backend: str, device: torch.device) -> tuple[str, list[str]]:
    """Refreshes one small bucket; returns the backend that did it, and its notes."""
    table = torch.arange(256, dtype=torch.int32, device=device).view(2, 128)
    planner = ReplayPlanner(RequestTable(table, compress_ratio=4, page_size=64), backend=backend)
    lengths = torch.full((2,), -1, dtype=torch.int32, device=device)
    plan = planner.plan([StepBuffers(1, sequence_lengths=lengths)])
    plan.run(torch.tensor([7, 9], device=device), torch.tensor([1, 1], device=device))
    if lengths.tolist() != [8, 10]:
        raise RuntimeError(f"a refresh gave lengths {lengths.tolist()} instead of [8, 10]")
    return plan.backend, list(plan.explain().data.get("fallbacks", []))


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
