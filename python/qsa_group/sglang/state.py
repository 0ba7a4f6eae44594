"""What the plugin keeps for one backend of SGLang."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from qsa_group import QsaGroupError

from .bridge import read_capture
from .bucket import Bucket, make_bucket
from .counts import COUNTS
from .faults import UnexpectedSGLangError, is_refusal, report_fault
from .log import logger, say_once
from .phase import DRAFT, PHASES
from .planning import Planners, plan_bucket
from .settings import Settings
from .watch import Watch, WatchedBucket

__all__ = ["ATTRIBUTE", "State"]

ATTRIBUTE = "_qsa_group_state"
"""The attribute of a backend that holds its state."""


class State:
    """What is kept for one container of draft steps, or for one backend of verify or extend.

    The state hangs on the backend. Runners that share a process therefore never share a state, and the state goes when
    the backend goes. It refers to SGLang's metadata, but never to the backend, which nothing here may keep alive.

    Args:
        settings: the settings at the first capture.
        refresh_by_sglang: SGLang's own `init_forward_metadata_out_graph`, called with the owner and the live batch.

    Attributes:
        settings: as above.
        buckets: the planned buckets by phase and batch size.
        in_service: what replays each of these buckets: the bucket itself, or its watched form.
        draft_in_service: the part of the draft.
        retired: buckets from before the buffers were made anew. SGLang keeps their metadata until it captures the same
            bucket again, and so does the plugin.
    """

    def __init__(self, settings: Settings, refresh_by_sglang: Callable[..., Any]) -> None:
        self.settings = settings
        self.buckets: dict[str, dict[int, Bucket]] = {phase: {} for phase in PHASES}
        self.in_service: dict[str, dict[int, Bucket | WatchedBucket]] = {phase: {} for phase in PHASES}
        self.draft_in_service = self.in_service[DRAFT]
        self.retired: dict[tuple[str, int], Bucket] = {}
        self._declined: set[tuple[str, int]] = set()
        self._planners = Planners(settings)
        watched = settings.verify_every or settings.log_every
        self._watch = Watch(settings, refresh_by_sglang) if watched else None

    def restart(self) -> None:
        """Retires every bucket, since the buffers are made anew."""
        for phase, buckets in self.buckets.items():
            for batch_size, bucket in buckets.items():
                self.retired[phase, batch_size] = bucket
            buckets.clear()
            self.in_service[phase].clear()
        self._declined.clear()
        self._planners.forget()
        if self._watch is not None:
            self._watch.forget()

    def close(self) -> None:
        """Forgets everything; SGLang refreshes again."""
        self.restart()
        self.retired.clear()

    def capture(self, owner: Any, phase: str, forward_mode: Any, forward_batch: Any) -> None:
        """Plans a bucket whose metadata SGLang has just made.

        A bucket that cannot be planned is left to SGLang. So is a bucket with a fault of the plugin, unless the
        settings are strict: then the fault raises.
        """
        batch_size = int(forward_batch.batch_size)
        older = self._take_out(phase, batch_size)
        self.retired.pop((phase, batch_size), None)
        bucket = self._plan(owner, phase, forward_mode, forward_batch)
        if bucket is None:
            self._decline(phase, batch_size)
            return
        if older is not None:
            bucket.follow(older)
        if (phase, batch_size) in self._declined:
            # A graph that was captured while the bucket was SGLang's holds no refresh.
            bucket.note_graph_without_refresh()
        self._put_in(phase, batch_size, bucket)
        COUNTS.captures += 1

    def record(self, phase: str, forward_batch: Any) -> None:
        """Records the refresh of a bucket in the graph that is being captured.

        Raises:
            Exception: whatever goes wrong after the first launch, since the graph then holds a part of the refresh.
        """
        bucket = self.buckets[phase].get(forward_batch.batch_size)
        if bucket is None:
            return
        try:
            bucket.record(forward_batch)
        except Exception as error:
            if not self.give_up(phase, forward_batch.batch_size, error):
                raise

    def give_up(self, phase: str, batch_size: int, error: Exception) -> bool:
        """Leaves a bucket to SGLang after an exception, if that is sound.

        It is sound for an SGLang that is not as expected and for a fault of the plugin, as long as no graph holds the
        refresh. A graph that holds it goes on refreshing its buffers after SGLang has, from inputs that nobody would
        check any more. The other errors of this package, such as a failed launch, are the caller's to hear of.

        Returns:
            Whether the bucket is left to SGLang; otherwise the caller raises the exception.
        """
        bucket = self.buckets[phase].get(batch_size)
        if bucket is None or bucket.in_graphs:
            return False
        if isinstance(error, UnexpectedSGLangError):
            self._say_refused(phase, error)
        elif self.settings.strict or isinstance(error, QsaGroupError):
            return False
        else:
            report_fault(f"refreshing a {phase} bucket", error)
        self._take_out(phase, batch_size)
        self._decline(phase, batch_size)
        return True

    def before_sglang(self) -> None:
        """Must be called before SGLang refreshes a bucket itself.

        Raises:
            VerificationError: a comparison was waiting, and found a difference.
        """
        COUNTS.sglang += 1
        if self._watch is not None:
            self._watch.before_sglang()

    def stats(self) -> list[dict[str, Any]]:
        """The counts of each planner."""
        return self._planners.stats()

    def _plan(self, owner: Any, phase: str, forward_mode: Any, forward_batch: Any) -> Bucket | None:
        try:
            planned = plan_bucket(
                read_capture(owner, phase, forward_mode, forward_batch), self._planners, self.settings
            )
            if planned is None:
                return None
            if logger.isEnabledFor(logging.DEBUG):
                explanations = [plan.explain() for plan, _ in planned.plans]
                logger.debug("planned %s bucket %d: %s", phase, planned.batch_size, explanations)
            return make_bucket(planned)
        except Exception as error:
            if is_refusal(error):
                self._say_refused(phase, error)
            elif self.settings.strict:
                raise
            else:
                report_fault(f"planning a {phase} bucket", error)
            return None

    def _put_in(self, phase: str, batch_size: int, bucket: Bucket) -> None:
        self.buckets[phase][batch_size] = bucket
        # Chosen here, so that no replay has to ask whether it is watched.
        self.in_service[phase][batch_size] = bucket if self._watch is None else WatchedBucket(self._watch, bucket)

    def _take_out(self, phase: str, batch_size: int) -> Bucket | None:
        self.in_service[phase].pop(batch_size, None)
        return self.buckets[phase].pop(batch_size, None)

    def _decline(self, phase: str, batch_size: int) -> None:
        self._declined.add((phase, batch_size))
        COUNTS.declined += 1

    def _say_refused(self, phase: str, error: Exception) -> None:
        say_once(f"left to SGLang: {phase} graphs: {error}", key=f"{phase} {type(error).__name__}")
