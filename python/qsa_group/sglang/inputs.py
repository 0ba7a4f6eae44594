"""The tensors that a recorded refresh reads: which they are at the capture, and whether a replay has filled them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch

from .bridge import Capture, capture_extend_lens
from .faults import NOT_AS_EXPECTED, UnexpectedSGLangError, reading
from .phase import EXTEND

__all__ = ["Addresses", "Inputs", "batch_addresses", "fixed_inputs"]

Addresses = tuple[int, ...]
"""Where a batch's inputs stand: lengths, request slots, and in draft extend the extend lengths."""

_INPUT_BUFFERS = "sglang.srt.model_executor.input_buffers"


@dataclass(frozen=True)
class Inputs:
    """The tensors that a recorded refresh reads at every replay.

    Attributes:
        seq_lens: [batch] length of each request.
        req_pool_indices: [batch] request slot of each request.
        extend_lens: [batch] rows of each request, in draft extend alone.
    """

    seq_lens: torch.Tensor
    req_pool_indices: torch.Tensor
    extend_lens: torch.Tensor | None = None

    def addresses(self) -> Addresses:
        """Where the tensors stand."""
        addresses = (self.seq_lens.data_ptr(), self.req_pool_indices.data_ptr())
        return addresses if self.extend_lens is None else (*addresses, self.extend_lens.data_ptr())


def fixed_inputs(capture: Capture) -> Inputs | None:
    """The capture's tensors, if a graph may read them at every replay; None if SGLang does not promise that.

    A graph keeps addresses. SGLang promises that the live values stand at these addresses for the tensors in its
    process-wide pool of input buffers (`model_executor/input_buffers.py`): its members "are filled immediately before
    each replay". The runners of 0.5.23 keep the promise as follows.

    - `EAGLEDraftCudaGraphRunner.execute` copies lengths and slots of the live batch into its buffers, and then calls
      `init_forward_metadata_out_graph`. A batch that fills its bucket is handed over as it is. For a smaller batch the
      runner has zeroed the slots behind it, and hands over slices of the buffers.
    - `EAGLEDraftExtendCudaGraphRunner.execute` does the same with lengths, slots and extend lengths, and always hands
      over the buffers.
    - `DecodeCudaGraphRunner.load_batch` fills its buffers through the registry, whose policy for `req_pool_indices`
      zeroes the slots behind the batch. The runner hands over slices of the buffers.

    The planner's ``padding="slot"`` takes a row with slot 0 as padding, which fits these runners. Any other runner gets
    a launch before each replay.
    """
    extend_lens = None
    if capture.phase == EXTEND:
        extend_lens = capture_extend_lens(capture.owner, capture.forward_batch)
        if extend_lens is None:
            return None
    with reading("the inputs of the capture and SGLang's pool of input buffers"):
        tensors = {"seq_lens": capture.seq_lens, "req_pool_indices": capture.forward_batch.req_pool_indices}
        if extend_lens is not None:
            tensors["extend_seq_lens"] = extend_lens
        pool = getattr(sys.modules.get(_INPUT_BUFFERS), "_forward_input_buffer_pool", None)
        if pool is None or not all(_is_pooled(pool, name, tensor) for name, tensor in tensors.items()):
            return None
        return Inputs(*(tensor[: capture.batch_size] for tensor in tensors.values()))


def batch_addresses(phase: str, forward_batch: Any, in_capture: bool = False) -> Addresses:
    """Where the inputs of a batch stand.

    Args:
        phase: "draft", "verify" or "extend".
        forward_batch: SGLang's batch.
        in_capture: whether the batch is that of a capture.

    Raises:
        UnexpectedSGLangError: the batch is not as expected.
    """
    try:
        addresses = (forward_batch.seq_lens.data_ptr(), forward_batch.req_pool_indices.data_ptr())
        if phase != EXTEND:
            return addresses
        # The batch of a capture carries the extend lengths itself, a live batch carries them in its spec_info.
        extend_lens = getattr(forward_batch.spec_info, "extend_seq_lens_tensor", None)
        if extend_lens is None and in_capture:
            extend_lens = getattr(forward_batch, "extend_seq_lens", None)
        return *addresses, 0 if extend_lens is None else extend_lens.data_ptr()
    except NOT_AS_EXPECTED as error:
        raise UnexpectedSGLangError(f"the inputs of a {phase} batch", error) from error


def _is_pooled(pool: dict[Any, torch.Tensor], name: str, tensor: torch.Tensor) -> bool:
    address = tensor.untyped_storage().data_ptr()
    return any(key[0] == name and pooled.untyped_storage().data_ptr() == address for key, pooled in pool.items())
