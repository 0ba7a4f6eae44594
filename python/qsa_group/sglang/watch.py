"""Replays that are compared or counted in the log, for settings that ask for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .bucket import Bucket
from .compare import Comparer
from .counts import COUNTS
from .log import logger
from .settings import Settings

__all__ = ["Watch", "WatchedBucket"]


class Watch:
    """Stands between SGLang and the buckets of one backend.

    Args:
        settings: how often to compare, and how often to log.
        refresh_by_sglang: SGLang's own method, called with the owner and the live batch.
    """

    def __init__(self, settings: Settings, refresh_by_sglang: Callable[..., Any]) -> None:
        self._comparer = Comparer(settings.verify_every, refresh_by_sglang) if settings.verify_every else None
        self._log_every = settings.log_every

    def replay(self, bucket: Bucket, owner: Any, forward_batch: Any) -> bool:
        """As `Bucket.replay`, with a comparison or a line in the log when it is time.

        Raises:
            VerificationError: the refresh, or the one before, differs from SGLang's own.
        """
        if self._comparer is None:
            refreshed = bucket.replay(owner, forward_batch)
        else:
            refreshed = self._comparer.replay(bucket, owner, forward_batch)
        if not refreshed:
            return False
        if self._log_every and (COUNTS.recorded + COUNTS.launched) % self._log_every == 0:
            logger.info("%s", COUNTS.as_dict())
        return True

    def before_sglang(self) -> None:
        """Makes the comparison that waits, since SGLang is about to write the buffers.

        Raises:
            VerificationError: the refresh before differs from SGLang's own.
        """
        if self._comparer is not None:
            self._comparer.settle()

    def forget(self) -> None:
        """Drops the comparison that waits, since the buffers are being made anew."""
        if self._comparer is not None:
            self._comparer.forget()


class WatchedBucket:
    """A bucket whose replays go through the watch."""

    __slots__ = ("_bucket", "_watch")

    def __init__(self, watch: Watch, bucket: Bucket) -> None:
        self._watch = watch
        self._bucket = bucket

    def replay(self, owner: Any, forward_batch: Any) -> bool:
        """As `Watch.replay`."""
        return self._watch.replay(self._bucket, owner, forward_batch)
