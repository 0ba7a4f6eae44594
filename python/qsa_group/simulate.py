"""A serving loop with a paged allocator, on plain Python numbers: it says what each speculative round looks like.

Requests arrive, wait, are admitted under a budget of slots, pages and prefill tokens, are prefilled, and then take part
in rounds. In a round each request drafts, verify accepts some of the drafted tokens (drawn), the request grows by them,
page by page, and leaves when its answer is complete. Nothing here computes metadata; ``runner.py`` does that.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .rounds import Round, RoundSettings, SettingsError
from .trace import Request

__all__ = ["PageAllocator", "Server", "ServerOptions"]


class PageAllocator:
    """Hands out request slots and pages, and keeps account of promised pages.

    Page 0 and slot 0 are reserved. Pages start shuffled and are reused last in, first out, so that the pages of a
    request are scattered. A request's pages are promised when it is admitted and taken one by one as it grows; that is
    why growing never fails.
    """

    def __init__(self, settings: RoundSettings, pages: int, draw: random.Random) -> None:
        """Makes an allocator of ``pages`` pages, the reserved one included.

        Raises:
            SettingsError: they cannot hold one full context, or are more than can be told apart.
        """
        if not settings.max_pages < pages <= settings.most_pages:
            raise SettingsError(
                f"--pages has value {pages}, must be from {settings.max_pages + 1} to {settings.most_pages}; pass a "
                f"number in this range, or lower --context: fewer pages cannot hold one of {settings.context} tokens"
            )
        self._page_size = settings.page_size
        self._free_pages = list(range(1, pages))
        self._free_slots = list(range(1, settings.slots))
        draw.shuffle(self._free_pages)
        draw.shuffle(self._free_slots)
        self._owned: dict[int, list[int]] = {}
        self._promised: dict[int, int] = {}
        self._unpromised = pages - 1

    @property
    def pages_in_use(self) -> int:
        """Pages that requests own."""
        return sum(map(len, self._owned.values()))

    @property
    def free_pages(self) -> int:
        """Pages that nobody owns."""
        return len(self._free_pages)

    def pages_for(self, tokens: int) -> int:
        """Pages that ``tokens`` tokens fill or begin."""
        return -(-tokens // self._page_size)

    def admit(self, tokens: int) -> int | None:
        """Promises the pages of a request that may grow to ``tokens`` tokens.

        Returns:
            The request's slot, or None while there is no room.
        """
        pages = self.pages_for(tokens)
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
        """
        owned = self._owned[slot]
        needed = self.pages_for(tokens)
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


@dataclass(frozen=True)
class ServerOptions:
    """How the simulated server behaves.

    Attributes:
        pages: pages in all, page 0 included; None for 32 a request of the largest batch, but at least one full context,
            and at most what can be told apart.
        acceptance: chance that a drafted token is accepted if those before it were.
        prefill_tokens: most prompt tokens that are admitted between two rounds.
        prefill_rate: prompt tokens a second.
        round_seconds: time of a round of an empty batch.
        request_seconds: what each request adds to a round.
        speed: requests arrive so many times as fast as the trace says.
        seed: for acceptance and page order.
    """

    pages: int | None = None
    acceptance: float = 0.7
    prefill_tokens: int = 16384
    prefill_rate: float = 60_000.0
    round_seconds: float = 0.020
    request_seconds: float = 0.000_1
    speed: float = 1.0
    seed: int = 0


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
        options: behaviour.
        finished: requests that were answered in full, or as far as the context allows.
        refused: requests whose prompt does not fit the context.
        clipped: requests whose answer was cut at the end of the context.
        live_tokens: tokens in the table at the start of the last round.
        clock: simulated seconds.
    """

    settings: RoundSettings
    options: ServerOptions = field(default_factory=ServerOptions)
    finished: int = 0
    refused: int = 0
    clipped: int = 0
    generated_tokens: int = 0
    live_tokens: int = 0
    clock: float = 0.0

    def __post_init__(self) -> None:
        """Sets up the allocator."""
        pages = self.options.pages
        if pages is None:
            pages = max(self.settings.max_batch * 32, self.settings.max_pages + 1)
            pages = min(pages, self.settings.most_pages)
        self._draw = random.Random(self.options.seed)
        self.allocator = PageAllocator(self.settings, pages, self._draw)
        self._live: list[_Live] = []
        self._new_pages: list[tuple[int, int, int]] = []

    def serve(self, requests: Sequence[Request]) -> Iterator[Round]:
        """Serves ``requests``, which are in order of arrival.

        Yields:
            One item a speculative round, before the round's tokens count.
        """
        waiting: deque[Request] = deque()
        coming = deque(requests)
        while coming or waiting or self._live:
            if not waiting and not self._live:
                self.clock = max(self.clock, coming[0].arrival / self.options.speed)
            while coming and coming[0].arrival / self.options.speed <= self.clock:
                waiting.append(coming.popleft())
            self._admit(waiting)
            if self._live:
                yield self._round()

    def _admit(self, waiting: deque[Request]) -> None:
        budget = self.options.prefill_tokens
        while waiting and len(self._live) < self.settings.max_batch:
            request = waiting[0]
            room = self.settings.context - self.settings.draft_tokens - request.context_tokens
            if room <= 0:
                self.refused += 1
                waiting.popleft()
                continue
            if request.context_tokens > budget and budget < self.options.prefill_tokens:
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
        self.clock += context / self.options.prefill_rate
        self.generated_tokens += 1  # Prefill itself gives the first token.
        live = _Live(slot, context, answer - 1)
        if live.remaining:
            self._live.append(live)
        else:
            self._finish(live)

    def _round(self) -> Round:
        batch = self._live
        drafted = self.settings.draft_tokens
        seq_lens = [live.length for live in batch]
        slots = [live.slot for live in batch]
        extend_lens = []
        for live in batch:
            self._new_pages += self.allocator.grow(live.slot, live.length + drafted)
            accepted = min(self._accept(), live.remaining)
            live.length += accepted
            live.remaining -= accepted
            self.generated_tokens += accepted
            extend_lens.append(accepted if live.remaining else 0)
        self.live_tokens = sum(seq_lens)
        item = Round(self.clock, seq_lens, slots, extend_lens, self._new_pages)
        self._new_pages = []
        self.clock += self.options.round_seconds + self.options.request_seconds * len(batch)
        for live in batch:
            if not live.remaining:
                self._finish(live)
        self._live = [live for live in batch if live.remaining]
        return item

    def _accept(self) -> int:
        """Tokens that a verify gives: the accepted part of the draft, and one of its own."""
        tokens = 1
        while tokens < self.settings.draft_tokens and self._draw.random() < self.options.acceptance:
            tokens += 1
        return tokens

    def _finish(self, live: _Live) -> None:
        self.allocator.release(live.slot)
        self.finished += 1
