"""The serving loop and its allocator, and the runner that checks every round."""

from __future__ import annotations

import random
from typing import Any

import pytest

from helpers.machine import ON_CPU, ON_GPU
from qsa_group import ReplayPlan
from qsa_group.demo.rounds import Round, RoundSettings
from qsa_group.demo.runner import RoundRunner
from qsa_group.demo.simulate import PageAllocator, Server
from qsa_group.demo.timeline import measure
from qsa_group.demo.trace import Request, generate

SMALL = RoundSettings(max_batch=6, context=2048, slots=8)


def some_requests(count: int = 40, seed: int = 0) -> list[Request]:
    """Requests that arrive faster than they are served, with short contexts."""
    draw = random.Random(seed)
    return [Request(i * 0.01, draw.randint(1, 900), draw.randint(1, 60)) for i in range(count)]


class TestAllocator:
    def test_pages_are_promised_taken_and_given_back(self) -> None:
        settings = RoundSettings(max_batch=2, context=256, slots=3)
        allocator = PageAllocator(settings, 7, random.Random(0))
        first = allocator.admit(256)
        assert first in (1, 2)
        assert allocator.admit(192) is None, "six pages cannot hold four and three"
        second = allocator.admit(128)
        assert {first, second} == {1, 2}
        assert allocator.admit(1) is None, "no slot is left"
        entries = allocator.grow(first, 65)
        assert [(slot, number) for slot, number, _ in entries] == [(first, 0), (first, 1)]
        assert allocator.grow(first, 128) == []
        assert [number for _, number, _ in allocator.grow(first, 129)] == [2]
        with pytest.raises(ValueError, match="was promised 2"):
            allocator.grow(second or 0, 129)
        allocator.release(first)
        assert allocator.free_pages == 6
        assert allocator.admit(256) == first

    def test_pages_by_default_can_be_told_apart(self) -> None:
        settings = RoundSettings(max_batch=128, page_size=1 << 20, context=2048, slots=130)
        server = Server(settings)
        assert server.allocator.free_pages == 2047  # Times 2^20 tokens: all that int32 can name, less page 0.
        assert Server(SMALL).allocator.free_pages == 6 * 32 - 1

    @pytest.mark.parametrize("sharing", [False, True])
    def test_entries_are_counted_as_they_are_allocated(self, sharing: bool) -> None:
        settings = RoundSettings(3, 5, 3, 12, 600, 7, index_sharing=sharing)
        runner = RoundRunner(settings, backend="host")
        buffers = [pass_.arena.step(step) for pass_ in runner._passes for step in range(pass_.arena.steps)]
        names = ("page_table", "ring_group_locs")
        assert settings.buffer_entries == sum(step[name].numel() for step in buffers for name in names if name in step)


class TestServer:
    def test_rounds_are_what_a_paged_engine_would_run(self) -> None:
        """Follows every table entry and every length, from the rounds alone."""
        requests = some_requests()
        server = Server(SMALL, pages=100, seed=5)
        owner: dict[int, int] = {}
        table: dict[int, dict[int, int]] = {}
        lengths: dict[int, int] = {}
        time = -1.0
        generated = 0
        batches = set()
        for item in server.serve(requests):
            assert item.time > time
            time = item.time
            fresh = {slot for slot, number, _ in item.pages if number == 0}
            for slot in fresh:
                table[slot] = {}
                lengths.pop(slot, None)
            owner = {page: slot for page, slot in owner.items() if slot in lengths}
            for slot, number, page in item.pages:
                assert 1 <= slot < SMALL.slots
                assert 1 <= page < 100
                assert owner.setdefault(page, slot) == slot, "a page has two owners"
                assert number == len(table[slot]), "pages come in order"
                table[slot][number] = page
            assert len(set(item.slots)) == len(item.slots) <= SMALL.max_batch
            batches.add(len(item.slots))
            for slot, length, extend in zip(item.slots, item.seq_lens, item.extend_lens, strict=True):
                assert lengths.setdefault(slot, length) == length
                assert len(table[slot]) * SMALL.page_size >= length + SMALL.draft_tokens
                assert 0 <= extend <= SMALL.draft_tokens
                if extend:
                    lengths[slot] = length + extend
                else:
                    del lengths[slot]
                generated += extend
        assert not lengths, "every request has finished"
        assert server.finished == len(requests)
        assert server.generated_tokens == sum(r.generated_tokens for r in requests) >= generated
        assert server.allocator.free_pages == 99
        assert max(batches) == SMALL.max_batch
        assert len(batches) > 3

    def test_a_seed_gives_the_same_rounds(self) -> None:
        def rounds(seed: int) -> list[Round]:
            return list(Server(SMALL, seed=seed).serve(some_requests()))

        assert rounds(1) == rounds(1) != rounds(2)

    def test_what_does_not_fit_the_context_is_refused_or_cut(self) -> None:
        settings = RoundSettings(max_batch=2, context=100, slots=4)
        server = Server(settings)
        items = list(server.serve([Request(0, 96, 5), Request(0, 95, 5), Request(0, 50, 400), Request(0, 8, 1)]))
        assert (server.refused, server.clipped, server.finished) == (1, 2, 3)
        assert max(length for item in items for length in item.seq_lens) <= 100 - settings.draft_tokens
        assert all(8 not in item.seq_lens for item in items), "an answer of one token needs no round"

    def test_nothing_to_serve(self) -> None:
        assert list(Server(SMALL).serve([])) == []

    @pytest.mark.parametrize(("acceptance", "tokens"), [(0.0, 1), (1.0, 4)])
    def test_acceptance(self, acceptance: float, tokens: int) -> None:
        rounds = list(Server(SMALL, acceptance=acceptance).serve([Request(0, 100, 41)]))
        assert [item.extend_lens for item in rounds] == [[tokens]] * (40 // tokens - 1) + [[0]]

    def test_a_gap_between_arrivals_is_skipped(self) -> None:
        server = Server(SMALL, speed=2.0)
        rounds = list(server.serve([Request(0.0, 10, 2), Request(1e6, 10, 2)]))
        assert len(rounds) == 2
        assert rounds[1].time == pytest.approx(5e5, abs=1)


@pytest.fixture(params=[*ON_CPU, *ON_GPU])
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    backend, device = request.param
    return backend, device


class TestRunner:
    @pytest.mark.parametrize("sharing", [False, True])
    def test_every_round_is_right(self, place: tuple[str, str], sharing: bool) -> None:
        backend, device = place
        count = 6 if device == "cpu" and backend == "triton" else 40
        settings = RoundSettings(max_batch=6, context=2048, slots=8, index_sharing=sharing)
        runner = RoundRunner(settings, backend=backend, device=device)
        for number, item in enumerate(Server(settings).serve(some_requests(count))):
            runner.run(item)
            if number == 3 and count == 6:
                break
        runner.finish()
        summary = runner.summary()
        assert summary["mismatches"] == 0, summary["first_differences"]
        assert summary["launches"]["decode"] == runner.rounds
        assert summary["step_by_step"]["decode"] == 2 * runner.rounds
        assert summary["groups"] == {"decode": [[0, 1]], "target_verify": [[0]], "draft_extend": [[0]]}
        stats = summary["planner"]
        assert stats["launches"] == sum(summary["launches"].values())
        assert stats["step_refreshes"] == sum(summary["step_by_step"].values())
        assert stats["hits"] + stats["misses"] >= 3 * runner.rounds
        assert stats["misses"] == sum(map(len, summary["buckets"].values()))

    @pytest.mark.parametrize("settings", [RoundSettings(3, 5, 3, 12, 600, 7), RoundSettings(7, 2, 1, 1, 64, 4)])
    def test_other_sizes(self, settings: RoundSettings) -> None:
        runner = RoundRunner(settings, backend="host")
        requests = [
            Request(r.arrival / 50, r.context_tokens // 20 + 1, r.generated_tokens // 8 + 1) for r in generate(12)
        ]
        for item in Server(settings).serve(requests):
            runner.run(item)
        runner.finish()
        assert runner.rounds > 10
        assert runner.mismatches == 0, runner.first_differences

    def test_a_wrong_value_is_counted_and_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        runner = RoundRunner(SMALL, backend="host")
        right = ReplayPlan.run

        def wrong(plan: ReplayPlan, *inputs: Any) -> None:
            right(plan, *inputs)
            if plan.mode == "target_verify":
                plan.steps[0].write_locs[2] += 1

        monkeypatch.setattr(ReplayPlan, "run", wrong)
        runner.run(next(iter(Server(SMALL).serve(some_requests()))))
        assert runner.mismatches == 1
        assert "round 1, target_verify, bucket" in runner.first_differences[0]
        assert "write_locs[2]" in runner.first_differences[0]

    def test_a_changed_table_is_found(self) -> None:
        runner = RoundRunner(SMALL, backend="host")
        runner.planner.table.req_to_token[0, 0] = 5
        runner.finish()
        assert runner.mismatches == 1

    def test_a_timeline_measures_both_ways(self) -> None:
        runner = RoundRunner(SMALL, backend="host")
        line = measure(runner, Round(0.0, [100] * 5, [1, 2, 3, 4, 5], [1] * 5, []), repeats=11)
        assert (line.batch, line.bucket) == (5, 6)
        assert [segment.label for segment in line.step_by_step.segments] == ["draft 1", "draft 2", "verify", "extend"]
        assert [segment.label for segment in line.grouped.segments] == ["draft 1-2", "verify", "extend"]
        assert (line.step_by_step.launches, line.grouped.launches) == (4, 3)
        assert line.repeats == 11
        assert measure(runner, Round(0.0, [100], [1], [1], []), seconds=0.0).repeats == 1
        for lane in (line.step_by_step, line.grouped):
            assert 0 < lane.p10 <= lane.total <= lane.p90
