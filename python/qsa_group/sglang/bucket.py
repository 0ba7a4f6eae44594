"""How one captured bucket is refreshed: recorded in its graph, or launched before each replay."""

from __future__ import annotations

from typing import Any

import torch

from qsa_group import PlanChangedError

from .bridge import buffer, refresh_step_by_sglang
from .counts import COUNTS
from .faults import NOT_AS_EXPECTED, UnexpectedSGLangError
from .inputs import Addresses, Inputs, batch_addresses
from .phase import DRAFT, EXTEND, VERIFY
from .planning import PlannedBucket

__all__ = ["Bucket", "capturing", "make_bucket"]

_MOST_SLICES = 8
"""Slices of the runner's buffers that a bucket keeps."""


def capturing(tensor: torch.Tensor) -> bool:
    """Whether a launch on this tensor would become part of a graph now."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


class Bucket:
    """One captured bucket; a subclass for each phase says how a replay is refreshed.

    Attributes:
        planned: what was planned at the capture.
        plans: the plans, in the order in which they run.
        metadata: SGLang's metadata of each step.
        leftover: draft steps that SGLang refreshes itself.
        recorded: whether every graph of this bucket holds its refresh.
        in_graphs: whether some graph of this bucket holds a refresh, or a part of one.
        bound: where the inputs stand that the graphs read.
        seq_lens_at: address of the lengths that the last graph reads.
        slots_at: address of the request slots that it reads.
    """

    __slots__ = (
        "_has_graph_without_refresh",
        "_loaded",
        "bound",
        "in_graphs",
        "leftover",
        "metadata",
        "planned",
        "plans",
        "recorded",
        "seq_lens_at",
        "slots_at",
    )

    def __init__(self, planned: PlannedBucket) -> None:
        self.planned = planned
        # Read at every replay, and so without a step through `planned`.
        self.plans = tuple(plan for plan, _ in planned.plans)
        self.metadata = planned.metadata
        self.leftover = planned.leftover
        self.recorded = False
        self.in_graphs = False
        self.bound: set[Addresses] = set()
        self.seq_lens_at = self.slots_at = 0
        self._has_graph_without_refresh = False
        self._loaded = False

    def follow(self, older: Bucket) -> None:
        """Takes over the graphs of an earlier capture of the same bucket.

        SGLang may capture a bucket several times without new buffers, for graphs with and without adapters, say. All
        these graphs are replayed under one key. The bucket counts as recorded only if each of them holds a refresh.
        """
        self.bound |= older.bound
        self.in_graphs |= older.in_graphs
        if not older.recorded:
            self.note_graph_without_refresh()

    def note_graph_without_refresh(self) -> None:
        """Says that a graph of this bucket needs its refresh before each replay."""
        self._has_graph_without_refresh = True

    def replay(self, owner: Any, forward_batch: Any) -> bool:
        """Refreshes the bucket for the live batch, and sets the `forward_metadata` of each backend.

        Args:
            owner: the container of the draft steps, or the backend of verify or extend.
            forward_batch: SGLang's live batch.

        Returns:
            Whether the bucket is refreshed; if not, SGLang has to do it.

        Raises:
            PlanChangedError: the graphs read other tensors than the batch's, or there are other backends than at the
                capture.
            LaunchError: a launch failed.
            UnexpectedSGLangError: the batch is not as expected.
        """
        raise NotImplementedError

    def run(
        self,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        padding: int,
        extend_lens: torch.Tensor | None,
    ) -> None:
        """Runs every plan of the bucket. A launch that fails raises."""
        for plan in self.plans:
            plan.run(seq_lens, req_pool_indices, padding, extend_lens)

    def record(self, forward_batch: Any) -> None:
        """Records the refresh, if a capture is on; otherwise loads what the capture will need.

        Nothing happens if the batch's tensors are not those of the plan.

        Args:
            forward_batch: SGLang's batch of the capture.

        Raises:
            LaunchError: a launch failed.
            UnexpectedSGLangError: the batch is not as expected.
        """
        inputs = self.planned.inputs
        if inputs is None:
            return
        addresses = inputs.addresses()
        if batch_addresses(self.planned.phase, forward_batch, in_capture=True) != addresses:
            return
        if not capturing(inputs.seq_lens):
            self._warm_up(inputs)
            return
        # From here on the graph may hold a part of the refresh, whatever happens.
        self.in_graphs = True
        self.run(inputs.seq_lens, inputs.req_pool_indices, 0, inputs.extend_lens)
        self.bound.add(addresses)
        self.seq_lens_at, self.slots_at = addresses[:2]
        self.recorded = not self._has_graph_without_refresh
        COUNTS.nodes += 1

    def require_bound(self, forward_batch: Any) -> None:
        """Checks that a graph of this bucket reads the tensors of a live batch.

        Raises:
            PlanChangedError: no graph does. The graph would go by values that are not the batch's.
            UnexpectedSGLangError: the batch is not as expected.
        """
        phase, size = self.planned.phase, self.planned.batch_size
        addresses = batch_addresses(phase, forward_batch)
        if addresses in self.bound:
            return
        raise PlanChangedError(
            f"the {phase} graph of batch size {size} refreshes itself from the buffers of its capture, but is replayed "
            "with other tensors; set QSA_GROUP_SGLANG_MODE=direct for a runner that does this",
            field="inputs",
            planned=sorted(self.bound),
            given=addresses,
        )

    def _warm_up(self, inputs: Inputs) -> None:
        """Runs the plans once with every row as padding, so that the capture loads nothing.

        The forward of a warm-up reads what stands in the buffers, and must not touch any request. SGLang makes every
        row padding at the capture for the same reason. Later calls without a capture are more warm-ups, or replays in
        SGLang's debug mode for breakable graphs. A replay of that mode was refreshed before it began.
        """
        if not self._loaded:
            self._loaded = True
            self.run(inputs.seq_lens, inputs.req_pool_indices, self.planned.batch_size, inputs.extend_lens)


class DraftBucket(Bucket):
    """A bucket of the draft steps."""

    __slots__ = ()

    def replay(self, owner: Any, forward_batch: Any) -> bool:
        """See `Bucket.replay`. This runs once a round, so that every call and every look-up counts."""
        backends, all_metadata = owner.attn_backends, self.metadata
        if len(backends) != len(all_metadata):
            raise self._other_backends(len(backends))
        if self.recorded:
            # A batch that fills its bucket stands elsewhere. SGLang has copied it to where the graph reads; see
            # `fixed_inputs`.
            if getattr(forward_batch, "num_padding", None) and (
                forward_batch.seq_lens.data_ptr() != self.seq_lens_at
                or forward_batch.req_pool_indices.data_ptr() != self.slots_at
            ):
                self.require_bound(forward_batch)
            COUNTS.recorded += 1
        else:
            try:
                seq_lens, slots = forward_batch.seq_lens, forward_batch.req_pool_indices
            except NOT_AS_EXPECTED as error:
                raise UnexpectedSGLangError("the inputs of a draft batch", error) from error
            self.run(seq_lens, slots, getattr(forward_batch, "num_padding", None) or 0, None)
            COUNTS.launched += 1
        # `strict=True` would cost a keyword, and the lengths are equal.
        for backend, metadata in zip(backends, all_metadata):  # noqa: B905
            backend.forward_metadata = metadata
        if self.leftover:
            self._refresh_leftover(owner, forward_batch)
        return True

    def _other_backends(self, given: int) -> PlanChangedError:
        planned = len(self.metadata)
        return PlanChangedError(
            f"attn_backends has {given} steps, had {planned} at the capture; capture the graphs again",
            field="attn_backends",
            planned=planned,
            given=given,
        )

    def _refresh_leftover(self, owner: Any, forward_batch: Any) -> None:
        """Lets SGLang refresh the steps without a plan, one by one."""
        for step in self.leftover:
            refresh_step_by_sglang(owner, step, self.metadata[step], self.planned.forward_mode, forward_batch)
        COUNTS.sglang_steps += len(self.leftover)


class BackendBucket(Bucket):
    """A bucket of a backend of its own."""

    __slots__ = ("_slices",)

    def __init__(self, planned: PlannedBucket) -> None:
        super().__init__(planned)
        self._slices: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def replay(self, owner: Any, forward_batch: Any) -> bool:
        """See `Bucket.replay`."""
        if self.recorded:
            self.require_bound(forward_batch)
            COUNTS.recorded += 1
        elif self.launch(owner, forward_batch):
            COUNTS.launched += 1
        else:
            return False
        owner.forward_metadata = self.metadata[0]
        return True

    def launch(self, owner: Any, forward_batch: Any) -> bool:
        """Launches the refresh for a live batch; False if the plan does not fit the batch."""
        raise NotImplementedError

    def run_live(self, forward_batch: Any, extend_lens: torch.Tensor | None) -> None:
        """Runs the plan on the inputs of a live batch."""
        try:
            seq_lens, slots = forward_batch.seq_lens, forward_batch.req_pool_indices
        except NOT_AS_EXPECTED as error:
            raise UnexpectedSGLangError(f"the inputs of a {self.planned.phase} batch", error) from error
        # The batches of draft extend do not count their padding.
        padding = getattr(forward_batch, "num_padding", None) or 0
        self.run(self._slice(seq_lens), self._slice(slots), padding, extend_lens)

    def _slice(self, tensor: torch.Tensor) -> torch.Tensor:
        """The bucket's part of a tensor. Runners hand over their whole buffers, so the slices are kept."""
        size = self.planned.batch_size
        if tensor.shape[0] == size:
            return tensor
        kept = self._slices.get(id(tensor))
        if kept is None or kept[0] is not tensor:
            if len(self._slices) > _MOST_SLICES:
                self._slices.clear()
            kept = self._slices[id(tensor)] = (tensor, tensor[:size])
        return kept[1]


class VerifyBucket(BackendBucket):
    """A bucket of target verify."""

    __slots__ = ()

    def launch(self, owner: Any, forward_batch: Any) -> bool:
        """Launches the refresh, if the live batch has as many rows a request as the capture had."""
        try:
            draft_token_num = int(forward_batch.spec_info.draft_token_num)
        except NOT_AS_EXPECTED as error:
            raise UnexpectedSGLangError("draft_token_num of a verify batch", error) from error
        if draft_token_num != self.planned.draft_token_num:
            return False
        self.run_live(forward_batch, None)
        return True


class ExtendBucket(BackendBucket):
    """A bucket of draft extend."""

    __slots__ = ("_num_rows",)

    def __init__(self, planned: PlannedBucket) -> None:
        super().__init__(planned)
        self._num_rows = buffer(planned.metadata[0], "sequence_lengths").shape[0]

    def launch(self, owner: Any, forward_batch: Any) -> bool:
        """Launches the refresh with the extend lengths from SGLang's own staging.

        SGLang takes a tensor on the device as it is. Values on the host go through its two pinned buffers.
        """
        try:
            size = self.planned.batch_size
            extend_lens = owner._stage_extend_lens(forward_batch.spec_info, size, self._num_rows)
        except NOT_AS_EXPECTED as error:
            raise UnexpectedSGLangError("_stage_extend_lens", error) from error
        self.run_live(forward_batch, extend_lens)
        return True


_CLASSES: dict[str, type[Bucket]] = {DRAFT: DraftBucket, VERIFY: VerifyBucket, EXTEND: ExtendBucket}


def make_bucket(planned: PlannedBucket) -> Bucket:
    """The bucket of a phase."""
    return _CLASSES[planned.phase](planned)
