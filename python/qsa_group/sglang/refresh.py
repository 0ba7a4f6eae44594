"""What the plugin keeps for one backend of SGLang, and how a bucket is refreshed.

A backend's `State` hangs on the backend itself, so runners that share a process never share one, and it goes when the
backend goes. It holds a `Bucket` for each captured batch size and mode: the plans, made at capture, and how a replay
starts them.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from qsa_group.errors import LayoutError, PlanChangedError, QsaGroupError
from qsa_group.planner import ReplayPlan, ReplayPlanner

from .bridge import (
    ALL_BUFFERS,
    Inputs,
    buffers_read,
    fixed_inputs,
    is_translating,
    request_table,
    step_buffers,
)
from .counts import COUNTS, logger, say_once
from .settings import Settings

__all__ = ["ATTRIBUTE", "Bucket", "State", "capturing"]

ATTRIBUTE = "_qsa_group_state"
"""Where a backend's state hangs."""

PLAN_MODES = {"draft": "decode", "verify": "target_verify", "extend": "draft_extend"}

_CANNOT_PLAN = (QsaGroupError, AttributeError, KeyError, TypeError, ValueError)
"""What planning meets on objects that are not as the probe says; the bucket is then SGLang's."""


def capturing(tensor: torch.Tensor) -> bool:
    """Whether what is launched now is recorded in a graph."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


class Bucket:
    """One captured batch size in one mode.

    Attributes:
        phase: "draft", "verify" or "extend".
        batch_size: requests of the bucket.
        forward_mode: the mode that SGLang keeps its metadata under.
        metadata: SGLang's metadata of each step, in order.
        names: the buffers that are refreshed.
        plans: one plan a request table, with the steps that each refreshes.
        leftover: draft steps that SGLang refreshes itself.
        inputs: the tensors that a recorded refresh reads, or None where none may be recorded.
        bound: addresses that recorded refreshes read.
        seq_lens_at: address of the lengths that the last one reads.
        slots_at: address of the request slots that it reads.
        recorded: whether every graph of this bucket holds its refresh.
    """

    __slots__ = (
        "_slices",
        "batch_size",
        "bound",
        "draft_token_num",
        "forward_mode",
        "inputs",
        "leftover",
        "loaded",
        "metadata",
        "names",
        "phase",
        "plans",
        "recorded",
        "seq_lens_at",
        "slots_at",
        "tainted",
    )

    def __init__(
        self,
        phase: str,
        forward_mode: Any,
        forward_batch: Any,
        metadata: Sequence[Any],
        names: Sequence[str],
        plans: Sequence[tuple[ReplayPlan, tuple[int, ...]]],
        inputs: Inputs | None,
        draft_token_num: int | None,
    ) -> None:
        self.phase = phase
        self.batch_size = int(forward_batch.batch_size)
        self.forward_mode = forward_mode
        self.metadata = tuple(metadata)
        self.names = tuple(names)
        self.plans = tuple(plans)
        planned = {step for _, steps in plans for step in steps}
        self.leftover = tuple(step for step in range(len(metadata)) if step not in planned)
        self.inputs = inputs
        self.draft_token_num = draft_token_num
        self.bound: set[tuple[int, ...]] = set()
        self.seq_lens_at = self.slots_at = 0
        self.recorded = False
        self.tainted = False
        self.loaded = False
        self._slices: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def follow(self, older: Bucket) -> None:
        """Takes over what an earlier capture of the same bucket leaves in force.

        SGLang may capture a bucket several times without starting over, for graphs with and without adapters, say; all
        of them are then replayed under one key. The bucket counts as recorded only if all of them hold the refresh.
        """
        self.bound |= older.bound
        self.tainted = older.tainted or not older.recorded

    def record(self, forward_batch: Any) -> None:
        """Called where what is launched becomes part of the graph, if a capture is on."""
        inputs = self.inputs
        if inputs is None or _addresses(self.phase, forward_batch, capture=True) != _tensor_addresses(inputs):
            return
        if not capturing(inputs.seq_lens):
            self._warm_up(inputs)
            return
        self._run(inputs.seq_lens, inputs.req_pool_indices, 0, inputs.extend_lens)
        read = _tensor_addresses(inputs)
        self.bound.add(read)
        self.seq_lens_at, self.slots_at = read[:2]
        self.recorded = not self.tainted
        COUNTS.nodes += 1

    def _warm_up(self, inputs: Inputs) -> None:
        """Runs once, so that nothing is loaded in the capture, and with every row inert.

        A warm-up's forward runs on what stands in the buffers, and must not touch any request; SGLang pads every row at
        capture for the same reason. Later calls outside a capture are further warm-ups, or replays in SGLang's debug
        mode for breakable graphs, which were refreshed before they began.
        """
        if not self.loaded:
            self.loaded = True
            self._run(inputs.seq_lens, inputs.req_pool_indices, self.batch_size, inputs.extend_lens)

    def replay(self, owner: Any, forward_batch: Any) -> bool:
        """Refreshes the bucket for the live batch; False where SGLang must do it."""
        if self.phase == "draft":
            self.replay_draft(owner, forward_batch)
            return True
        if self.recorded:
            self._require_bound(forward_batch)
            COUNTS.recorded += 1
        elif not self._launch(owner, forward_batch):
            return False
        owner.forward_metadata = self.metadata[0]
        return True

    def replay_draft(self, owner: Any, forward_batch: Any) -> None:
        """As `replay`, for a draft bucket: called once a round, so that every call and lookup more counts."""
        if self.recorded:
            # A batch that fills its bucket is handed over as it is, after it was copied to where the graph reads; see
            # `fixed_inputs`.
            if getattr(forward_batch, "num_padding", None) and (
                forward_batch.seq_lens.data_ptr() != self.seq_lens_at
                or forward_batch.req_pool_indices.data_ptr() != self.slots_at
            ):
                self._require_bound(forward_batch)
            COUNTS.recorded += 1
        else:
            self._run(forward_batch.seq_lens, forward_batch.req_pool_indices, _padding(forward_batch), None)
            COUNTS.launched += 1
        backends = owner.attn_backends
        # Quicker than zip's own check.
        if len(backends) != len(self.metadata):
            raise self._other_backends(len(backends))
        for backend, metadata in zip(backends, self.metadata):  # noqa: B905
            backend.forward_metadata = metadata
        if self.leftover:
            self._leave(owner, forward_batch)

    def _other_backends(self, given: int) -> PlanChangedError:
        return PlanChangedError(
            f"attn_backends has {given} steps, had {len(self.metadata)} at the capture; capture the graphs again",
            field="attn_backends",
            planned=len(self.metadata),
            given=given,
        )

    def _require_bound(self, forward_batch: Any) -> None:
        """Refuses tensors that no recorded refresh reads: the graph would go by values that nobody vouches for."""
        given = _addresses(self.phase, forward_batch)
        if given in self.bound:
            return
        raise PlanChangedError(
            f"the {self.phase} graph of batch size {self.batch_size} refreshes itself from the buffers of its capture, "
            "but is replayed with other tensors; set QSA_GROUP_SGLANG_MODE=direct for a runner that does this",
            field="inputs",
            planned=sorted(self.bound),
            given=given,
        )

    def _launch(self, owner: Any, forward_batch: Any) -> bool:
        """One launch before the replay of a verify or extend graph."""
        seq_lens = self._first(forward_batch.seq_lens)
        slots = self._first(forward_batch.req_pool_indices)
        extend_lens = None
        if self.phase == "extend":
            rows = self.metadata[0].sequence_lengths.shape[0]
            # SGLang's own staging: a device tensor as it is, host values through its two pinned buffers.
            extend_lens = owner._stage_extend_lens(forward_batch.spec_info, self.batch_size, rows)
        elif int(forward_batch.spec_info.draft_token_num) != self.draft_token_num:
            return False
        self._run(seq_lens, slots, _padding(forward_batch), extend_lens)
        COUNTS.launched += 1
        return True

    def _first(self, tensor: torch.Tensor) -> torch.Tensor:
        """The bucket's part of a tensor. Runners hand over their whole buffers, so the slices are kept."""
        if tensor.shape[0] == self.batch_size:
            return tensor
        kept = self._slices.get(id(tensor))
        if kept is None or kept[0] is not tensor:
            if len(self._slices) > 8:
                self._slices.clear()
            kept = self._slices[id(tensor)] = (tensor, tensor[: self.batch_size])
        return kept[1]

    def _run(
        self,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        num_padding: int,
        extend_lens: torch.Tensor | None,
    ) -> None:
        # A launch that fails raises. SGLang's own refresh would fail as well, or hide it.
        for plan, _ in self.plans:
            plan.run(seq_lens, req_pool_indices, num_padding, extend_lens)

    def _leave(self, owner: Any, forward_batch: Any) -> None:
        """SGLang's refresh of the draft steps that could not be planned, each alone."""
        for step in self.leftover:
            refresh_by_sglang(owner, step, self.metadata[step], self.forward_mode, forward_batch)
        COUNTS.sglang_steps += len(self.leftover)


def refresh_by_sglang(owner: Any, step: int, metadata: Any, forward_mode: Any, forward_batch: Any) -> None:
    """One draft step through SGLang's own methods: its kernel where that serves, host staging where not."""
    backend, num_padding = owner.attn_backends[step], _padding(forward_batch)
    if backend._can_replay_with_gpu_kernels(metadata, forward_batch.seq_lens):
        backend._replay_cuda_graph_metadata_gpu(
            metadata,
            bs=forward_batch.batch_size,
            req_pool_indices=forward_batch.req_pool_indices,
            seq_lens=forward_batch.seq_lens,
            forward_mode=forward_mode,
            spec_info=forward_batch.spec_info,
            seq_lens_cpu=forward_batch.seq_lens_cpu,
            num_padding=num_padding,
            seq_offset=step + 1,
        )
        return
    batch = owner._make_step_forward_batch(forward_batch, step, num_padding=num_padding)
    backend._replay_cuda_graph_metadata(
        bs=batch.batch_size,
        req_pool_indices=batch.req_pool_indices,
        seq_lens=batch.seq_lens,
        forward_mode=forward_mode,
        spec_info=batch.spec_info,
        seq_lens_cpu=batch.seq_lens_cpu,
        num_padding=num_padding,
    )


class State:
    """What is kept for one container of draft steps, or for one backend of verify or extend.

    It refers to SGLang's metadata, never to the backend that it hangs on, so that nothing keeps that alive.

    Attributes:
        settings: the switches at the time of the first capture.
        buckets: by phase and batch size.
        draft: draft buckets that are replayed without asking the state, by batch size.
        retired: buckets from before the buffers were made anew. Their graphs are not replayed any more, but SGLang
            still keeps the old metadata until the same bucket is captured again, and so does this.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.buckets: dict[str, dict[int, Bucket]] = {"draft": {}, "verify": {}, "extend": {}}
        self.draft = self.buckets["draft"]
        self.retired: dict[tuple[str, int], Bucket] = {}
        self._planners: dict[tuple[int, ...], ReplayPlanner] = {}
        self._declined: set[tuple[str, int]] = set()
        # A planner's cache holds plans, which hold the cache: without this they would wait for the garbage collector,
        # which engines freeze.
        weakref.finalize(self, _forget_plans, self._planners).atexit = False

    def restart(self) -> None:
        """The buffers are made anew: nothing that was planned or recorded before counts any more."""
        for phase, buckets in self.buckets.items():
            for size, bucket in buckets.items():
                self.retired[phase, size] = bucket
            buckets.clear()
        self._declined.clear()
        _forget_plans(self._planners)

    def close(self) -> None:
        """Forgets everything; SGLang refreshes again."""
        self.restart()
        self.retired.clear()

    def capture(self, owner: Any, phase: str, forward_mode: Any, forward_batch: Any) -> None:
        """Plans a bucket whose metadata SGLang has just made."""
        size = int(forward_batch.batch_size)
        older = self.buckets[phase].pop(size, None)
        self.retired.pop((phase, size), None)
        try:
            bucket = self._bucket(owner, phase, forward_mode, forward_batch)
        except _CANNOT_PLAN as error:
            kind = type(error).__name__
            say_once(f"left to SGLang: {phase} graphs: {kind}: {error}", key=f"{phase} {kind}")
            bucket = None
        if bucket is None:
            self._declined.add((phase, size))
            COUNTS.declined += 1
            return
        if older is not None:
            bucket.follow(older)
        # A graph of this bucket that was captured while it was SGLang's holds no refresh.
        bucket.tainted |= (phase, size) in self._declined
        self.buckets[phase][size] = bucket
        COUNTS.captures += 1
        logger.debug("planned %s bucket %d: %s", phase, size, [plan.explain() for plan, _ in bucket.plans])

    def replay(self, phase: str, owner: Any, forward_batch: Any, original: Callable[..., Any]) -> bool:
        """Refreshes the bucket of a live batch; False where SGLang must do it, by its own method `original`."""
        bucket = self.buckets[phase].get(forward_batch.batch_size)
        return bucket is not None and bucket.replay(owner, forward_batch)

    def stats(self) -> list[dict[str, Any]]:
        """The planners' own counts."""
        return [planner.stats() for planner in self._planners.values()]

    def _bucket(self, owner: Any, phase: str, forward_mode: Any, forward_batch: Any) -> Bucket | None:
        children = list(owner.attn_backends) if phase == "draft" else [owner]
        key = (forward_mode, forward_batch.batch_size)
        metadata = [child._cuda_graph_metadata[key] for child in children]
        served = self._served(owner, children, metadata, forward_batch)
        if not served:
            return None
        names: Sequence[str] = ALL_BUFFERS
        if phase == "draft" and self.settings.buffers == "read":
            names = buffers_read(owner, forward_batch)
        draft_token_num = int(forward_batch.spec_info.draft_token_num) if phase == "verify" else None
        inputs = self._inputs(owner, phase, forward_batch)
        padding = "count" if inputs is None else "slot"

        def plan(planner: ReplayPlanner, steps: Sequence[int]) -> ReplayPlan:
            buffers = [step_buffers(metadata[step], step + 1, names) for step in steps]
            return planner.plan(buffers, PLAN_MODES[phase], draft_token_num=draft_token_num, padding=padding)

        plans: list[tuple[ReplayPlan, tuple[int, ...]]] = []
        for planner, steps in self._by_table(children, metadata, served):
            plans += _plan_most(planner, steps, plan)
        if not plans:
            return None
        return Bucket(phase, forward_mode, forward_batch, metadata, names, plans, inputs, draft_token_num)

    def _served(self, owner: Any, children: Sequence[Any], metadata: Sequence[Any], forward_batch: Any) -> list[int]:
        """Steps that this package may refresh."""
        served = []
        for step, (child, held) in enumerate(zip(children, metadata, strict=True)):
            reason, level = self._unfit(owner, child, held, forward_batch.seq_lens)
            if reason is None:
                served.append(step)
            else:
                say_once(f"left to SGLang: {reason}", level)
        return served

    def _unfit(self, owner: Any, child: Any, metadata: Any, seq_lens: torch.Tensor) -> tuple[str | None, int]:
        """Why a step is SGLang's, and how loud to say so."""
        pool = metadata.indexer_metadata.token_to_kv_pool
        runners = (getattr(owner, "model_runner", None), getattr(child, "runner", None))
        if is_translating(owner, child, pool, *runners):
            return "the request table holds virtual ids (kv_index_translator.is_translating)", logging.WARNING
        if child.req_to_token is None:
            return "there is no request table", logging.WARNING
        if not seq_lens.is_cuda:
            if self.settings.backend == "host" and seq_lens.device.type == "cpu":
                return None, logging.INFO
            return f"tensors on {seq_lens.device} are staged through the host", logging.INFO
        if not child._can_replay_with_gpu_kernels(metadata, seq_lens):
            return f"a pool of type {type(pool).__name__} is staged through the host", logging.WARNING
        return None, logging.INFO

    def _inputs(self, owner: Any, phase: str, forward_batch: Any) -> Inputs | None:
        if self.settings.mode != "recorded":
            return None
        extend_lens = None
        if phase == "extend":
            try:
                # The order in which SGLang looks for them itself at capture.
                extend_lens = owner._capture_extend_seq_lens(forward_batch)
            except RuntimeError:
                return None
        inputs = fixed_inputs(forward_batch, int(forward_batch.batch_size), extend_lens)
        if inputs is None:
            say_once(
                f"the {phase} graphs cannot refresh themselves, since their inputs are not in SGLang's pool of input "
                "buffers; there is a launch before each replay instead",
                logging.INFO,
            )
        return inputs

    def _by_table(
        self, children: Sequence[Any], metadata: Sequence[Any], served: Sequence[int]
    ) -> list[tuple[ReplayPlanner, list[int]]]:
        """Steps by the request table they read, which is one for all of them as a rule."""
        found: dict[int, tuple[ReplayPlanner, list[int]]] = {}
        for step in served:
            planner = self._planner(children[step], metadata[step])
            found.setdefault(id(planner), (planner, []))[1].append(step)
        return list(found.values())

    def _planner(self, child: Any, metadata: Any) -> ReplayPlanner:
        table = request_table(child, metadata)
        tokens = table.req_to_token
        # The planner keeps its table alive, so an address in this key is never another table's.
        key = (tokens.data_ptr(), *tokens.shape, *tokens.stride(), table.compress_ratio, table.page_size)
        planner = self._planners.get(key)
        if planner is None:
            backend = self.settings.planner_backend if tokens.is_cuda else self.settings.backend
            planner = self._planners[key] = ReplayPlanner(table, backend=backend)
        return planner


def _forget_plans(planners: dict[tuple[int, ...], ReplayPlanner]) -> None:
    for planner in planners.values():
        planner.clear()
    planners.clear()


def _plan_most(
    planner: ReplayPlanner, steps: Sequence[int], plan: Callable[[ReplayPlanner, Sequence[int]], ReplayPlan]
) -> list[tuple[ReplayPlan, tuple[int, ...]]]:
    """Plans the steps, without those whose buffers do not have the form that they must have."""
    left = list(steps)
    while left:
        try:
            return [(plan(planner, left), tuple(left))]
        except LayoutError as error:
            if error.step is None or len(steps) == 1:
                raise
            say_once(f"left to SGLang: draft step {left[error.step]}: {error}", key=f"step {left[error.step]}")
            del left[error.step]
    return []


def _padding(forward_batch: Any) -> int:
    return getattr(forward_batch, "num_padding", None) or 0


def _addresses(phase: str, forward_batch: Any, capture: bool = False) -> tuple[int, ...]:
    """Where a batch's inputs stand: two addresses, three in draft extend."""
    found = (forward_batch.seq_lens.data_ptr(), forward_batch.req_pool_indices.data_ptr())
    if phase != "extend":
        return found
    tensor = getattr(forward_batch.spec_info, "extend_seq_lens_tensor", None)
    if tensor is None and capture:
        tensor = getattr(forward_batch, "extend_seq_lens", None)
    return *found, 0 if tensor is None else tensor.data_ptr()


def _tensor_addresses(inputs: Inputs) -> tuple[int, ...]:
    found = (inputs.seq_lens.data_ptr(), inputs.req_pool_indices.data_ptr())
    return found if inputs.extend_lens is None else (*found, inputs.extend_lens.data_ptr())
