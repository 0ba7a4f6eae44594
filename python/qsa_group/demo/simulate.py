"""A serving loop with a paged allocator, in plain Python: it says what each speculative round looks like.

Requests arrive and wait. The server admits them as far as slots, pages and prefill tokens allow, and prefills them. In
a round each request drafts, and verify accepts some of the drafted tokens, which are drawn. The request grows by these
tokens, page by page, and leaves when its answer is complete. ``runner.py`` does the refreshes.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from .rounds import Round, RoundSettings
from .trace import Request

__all__ = ["PageAllocator", "Server"]

_PREFILL_TOKENS = 16384  # Prompt tokens that are admitted between two rounds.
_PREFILL_RATE = 60_000.0  # Prompt tokens a second.
_ROUND_SECONDS = 0.020  # A round of an empty batch.
_REQUEST_SECONDS = 0.000_1  # What each request adds to a round.


class PageAllocator:
    """Hands out request slots and pages.

    Page 0 and slot 0 are reserved. Pages start shuffled, and a page that comes back is the first to be used again, so
    that the pages of a request are scattered. Pages are promised to a request when it is admitted, and taken one by one
    as the request grows; so growing never fails.
    """

    def __init__(self, settings: RoundSettings, pages: int, draw: random.Random) -> None:
        """Makes an allocator of ``pages`` pages, the reserved one included: one full context at least."""
        self._page_size = settings.page_size
        self._free_pages = list(range(1, pages))
        self._free_slots = list(range(1, settings.slots))
        draw.shuffle(self._free_pages)
        draw.shuffle(self._free_slots)
        self._owned: dict[int, list[int]] = {}
        self._promised: dict[int, int] = {}
        self._unpromised = pages - 1

    @property
    def free_pages(self) -> int:
        """Pages that no request owns."""
        return len(self._free_pages)

    def admit(self, tokens: int) -> int | None:
        """Promises the pages of a request that may grow to ``tokens`` tokens.

        Returns:
            The request's slot, or None while there is no room.
        """
        pages = self._pages_for(tokens)
        if not self._free_slots or pages > self._unpromised:
            return None
        slot = self._free_slots.pop()
        self._owned[slot] = []
        self._promised[slot] = pages
        self._unpromised -= pages
        return slot

    def grow(self, slot: int, tokens: int) -> list[tuple[int, int, int]]:
        """Takes pages until the request of ``slot`` has room for ``tokens`` tokens.

        Returns:
            The new table entries: (slot, page number in the request, page id).

        Raises:
            ValueError: the request was promised fewer pages.
        """
        owned = self._owned[slot]
        needed = self._pages_for(tokens)
        if needed > self._promised[slot]:
            raise ValueError(f"slot {slot} grows to {needed} pages, but was promised {self._promised[slot]}")
        entries = []
        while len(owned) < needed:
            page = self._free_pages.pop()
            entries.append((slot, len(owned), page))
            owned.append(page)
        return entries

    def release(self, slot: int) -> None:
        """Takes back the slot and its pages. The table keeps the old page ids, as a real one does."""
        self._free_pages.extend(self._owned.pop(slot))
        self._unpromised += self._promised.pop(slot)
        self._free_slots.append(slot)

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self._page_size)


@dataclass(slots=True)
class _Live:
    """A request that is being served."""

    slot: int
    length: int
    remaining: int


@dataclass
class Server:
    """The serving loop.

    Attributes:
        settings: sizes.
        pages: pages in all, page 0 included; 0 for 32 a request of the largest batch, or one full context.
        acceptance: chance that a drafted token is accepted if those before it were.
        speed: requests arrive so many times as fast as the trace says.
        seed: for acceptance and page order.
        finished: requests that were answered in full, or as far as the context allows.
        refused: requests whose prompt does not fit the context.
        clipped: requests whose answer was cut at the end of the context.
        generated_tokens: tokens of all answers so far.
        clock: simulated seconds.
    """

    settings: RoundSettings
    pages: int = 0
    acceptance: float = 0.7
    speed: float = 1.0
    seed: int = 0
    finished: int = 0
    refused: int = 0
    clipped: int = 0
    generated_tokens: int = 0
    clock: float = 0.0

    def __post_init__(self) -> None:
        """Sets up the allocator."""
        pages = self.pages or max(self.settings.max_batch * 32, self.settings.max_pages + 1)
        # A page's tokens are int32 slots.
        pages = min(pages, (1 << 31) // self.settings.page_size)
        self._draw = random.Random(self.seed)
        self.allocator = PageAllocator(self.settings, pages, self._draw)
        self._live: list[_Live] = []
        self._new_pages: list[tuple[int, int, int]] = []

    def serve(self, requests: Sequence[Request]) -> Generator[Round]:
        """Serves ``requests``, which are in order of arrival.

        Yields:
            The rounds, each before its tokens count.
        """
        waiting: deque[Request] = deque()
        coming = deque(requests)
        while coming or waiting or self._live:
            if not waiting and not self._live:
                self.clock = max(self.clock, coming[0].arrival / self.speed)
            while coming and coming[0].arrival / self.speed <= self.clock:
                waiting.append(coming.popleft())
            self._admit(waiting)
            if self._live:
                yield self._round()

    def _admit(self, waiting: deque[Request]) -> None:
        budget = _PREFILL_TOKENS
        while waiting and len(self._live) < self.settings.max_batch:
            request = waiting[0]
            room = self.settings.context - self.settings.draft_tokens - request.context_tokens
            if room <= 0:
                self.refused += 1
                waiting.popleft()
                continue
            if request.context_tokens > budget and budget < _PREFILL_TOKENS:
                return  # A prompt longer than the whole budget is still admitted, alone.
            answer = min(request.generated_tokens, room)
            slot = self.allocator.admit(request.context_tokens + answer + self.settings.draft_tokens)
            if slot is None:
                return
            waiting.popleft()
            budget -= request.context_tokens
            self.clipped += answer < request.generated_tokens
            self._prefill(slot, request.context_tokens, answer)

    def _prefill(self, slot: int, context: int, answer: int) -> None:
        self._new_pages += self.allocator.grow(slot, context)
        self.clock += context / _PREFILL_RATE
        self.generated_tokens += 1  # Prefill itself gives the first token.
        live = _Live(slot, context, answer - 1)
        if live.remaining:
            self._live.append(live)
        else:
            self._finish(live)

    def _round(self) -> Round:
        batch = self._live
        seq_lens = [live.length for live in batch]
        slots = [live.slot for live in batch]
        extend_lens = []
        for live in batch:
            self._new_pages += self.allocator.grow(live.slot, live.length + self.settings.draft_tokens)
            accepted = min(self._accept(), live.remaining)
            live.length += accepted
            live.remaining -= accepted
            self.generated_tokens += accepted
            extend_lens.append(accepted if live.remaining else 0)
        round_ = Round(self.clock, seq_lens, slots, extend_lens, self._new_pages)
        self._new_pages = []
        self.clock += _ROUND_SECONDS + _REQUEST_SECONDS * len(batch)
        for live in batch:
            if not live.remaining:
                self._finish(live)
        self._live = [live for live in batch if live.remaining]
        return round_

    def _accept(self) -> int:
        """Tokens that a verify gives: the accepted part of the draft, and one of its own."""
        tokens = 1
        while tokens < self.settings.draft_tokens and self._draw.random() < self.acceptance:
            tokens += 1
        return tokens

    def _finish(self, live: _Live) -> None:
        self.allocator.release(live.slot)
        self.finished += 1
