"""SGLang's released metadata kernels, loaded as they are from an installed or unpacked wheel, and ways to call them."""

from __future__ import annotations

import copy
import importlib.util
import os
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from .sglang_metadata import metadata
from .timing import Call
from .workload import PAGE_SIZE, RATIO, Tensors

__all__ = ["Baselines", "load"]

MODULE = "sglang/srt/layers/attention/qsa/graph_metadata.py"
VARIABLE = "QSA_GROUP_SGLANG_PATH"
POOL = SimpleNamespace(qsa_compress_ratio=RATIO, qsa_compressed_page_size=PAGE_SIZE // RATIO)


def load() -> tuple[ModuleType, str]:
    """SGLang's kernel module, without importing SGLang, and SGLang's version.

    `QSA_GROUP_SGLANG_PATH` names an unpacked wheel or a wheel file; otherwise SGLang must be installed.

    Raises:
        ImportError: no SGLang, or an SGLang without the module.
    """
    path, version = _find()
    name = "_qsa_group_bench_sglang_graph_metadata"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module, version


def _find() -> tuple[Path, str]:
    named = os.environ.get(VARIABLE)
    if named and Path(named).suffix == ".whl":
        root = _unpack(Path(named))
    elif named and Path(named).is_file():
        return Path(named), "unknown"
    elif named:
        root = Path(named).parent if Path(named).name == "sglang" else Path(named)
    else:
        spec = importlib.util.find_spec("sglang")
        if spec is None or not spec.submodule_search_locations:
            raise ImportError(f"SGLang is not installed; set {VARIABLE} to an unpacked wheel")
        root = Path(next(iter(spec.submodule_search_locations))).parent
    path = root / MODULE
    if not path.is_file():
        raise ImportError(f"no {MODULE} under {root}")
    versions = [p.name.split("-")[1].removesuffix(".dist") for p in root.glob("sglang-*.dist-info")]
    return path, versions[0] if versions else "unknown"


def _unpack(path: Path) -> Path:
    """Unpacks what is needed of a wheel into a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="qsa_group_sglang_"))
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            if name == MODULE or name.endswith(".dist-info/METADATA"):
                wheel.extract(name, folder)
    return folder


class Baselines:
    """SGLang's launches of one grid point, each called as `call(seq_lens, req_pool_indices, num_padding)`.

    Args:
        module: SGLang's kernel module.
        steps: the buffers of each step.
        table: the request table.
        batch: requests of the bucket.
    """

    def __init__(self, module: ModuleType, steps: Sequence[Tensors], table: torch.Tensor, batch: int) -> None:
        self.module = module
        self.steps = [metadata(buffers) for buffers in steps]
        self.table = table
        self.batch = batch

    def fused(self) -> Call:
        """All draft steps in one launch, with its arguments prepared once."""
        args = self.module.prepare_draft_graph_metadata(self.steps, self.table, POOL)
        launch, batch = self.module.launch_draft_graph_metadata, self.batch

        def call(seq_lens: torch.Tensor, req_pool_indices: torch.Tensor, num_padding: int = 0) -> None:
            launch(args, seq_lens, req_pool_indices, batch, num_padding)

        return call

    def per_step(self) -> Call:
        """One launch a draft step; the kernel adds the step's offset."""

        def call(seq_lens: torch.Tensor, req_pool_indices: torch.Tensor, num_padding: int = 0) -> None:
            for step in range(len(self.steps)):
                self._launch(0, step, seq_lens, req_pool_indices, num_padding, seq_offset=step + 1)

        return call

    def casts(self) -> Call:
        """One launch a draft step, on a batch made for that step, as before SGLang fused the launches.

        The batch is made as `QwenSparseMultiStepDraftBackend._make_step_forward_batch` makes one for GPU tensors.
        """
        count = len(self.steps) + 1
        out_cache_loc = torch.zeros(self.batch * count, dtype=torch.int64, device=self.table.device)
        forward = SimpleNamespace(seq_lens=None, seq_lens_cpu=None, out_cache_loc=out_cache_loc, forward_mode=0)

        def call(seq_lens: torch.Tensor, req_pool_indices: torch.Tensor, num_padding: int = 0) -> None:
            forward.seq_lens, forward.req_pool_indices = seq_lens, req_pool_indices
            for step in range(len(self.steps)):
                batch = copy.copy(forward)
                lengths = (seq_lens + step + 1).to(torch.int32)
                if num_padding:
                    lengths = lengths.clone()
                    lengths[-num_padding:] = 1
                batch.seq_lens = lengths
                batch.batch_size = int(lengths.numel())
                rows = out_cache_loc.reshape(batch.batch_size, 1, count)
                batch.out_cache_loc = rows.permute(2, 0, 1).reshape(count, -1)[step]
                self._launch(0, step, batch.seq_lens, batch.req_pool_indices, num_padding)

        return call

    def verify(self, draft_token_num: int) -> Call:
        """The target verify refresh: one launch."""

        def call(seq_lens: torch.Tensor, req_pool_indices: torch.Tensor, num_padding: int = 0) -> None:
            self._launch(1, 0, seq_lens, req_pool_indices, num_padding, extend_len=draft_token_num)

        return call

    def extend(self) -> Call:
        """The draft extend refresh: two launches. Its call takes `extend_lens` before `num_padding`."""

        def call(
            seq_lens: torch.Tensor, req_pool_indices: torch.Tensor, extend_lens: torch.Tensor, num_padding: int = 0
        ) -> None:
            self._launch(2, 0, seq_lens, req_pool_indices, num_padding, extend_lens=extend_lens)

        return call

    def _launch(
        self,
        mode: int,
        step: int,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        num_padding: int,
        **more: Any,
    ) -> None:
        buffers = self.steps[step]
        self.module.launch_graph_metadata(
            mode=mode,
            bs=self.batch,
            num_rows=buffers.sequence_lengths.shape[0],
            seq_lens=seq_lens,
            req_pool_indices=req_pool_indices,
            extend_lens=more.get("extend_lens"),
            extend_len=more.get("extend_len", 0),
            num_padding=num_padding,
            metadata=buffers,
            req_to_token=self.table,
            pool=POOL,
            seq_offset=more.get("seq_offset", 0),
        )
