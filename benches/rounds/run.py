"""Runs the sections and reports them. A section that fails leaves its traceback, and the others run."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable
from typing import Any

from .bench import Bench
from .environment import environment
from .launches import launches
from .options import Options
from .times import host, stall, whole_round
from .values import values

__all__ = ["run"]

_SECTIONS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "stall": stall,
    "values": values,
    "launches": launches,
    "host": host,
    "round": whole_round,
}


def run(options: Options, stood_in: list[str]) -> int:
    """Runs what the command line asks for.

    Args:
        options: the command line.
        stood_in: packages that something stands in for.

    Returns:
        0 if every section ran and every value was SGLang's, else 1.
    """
    bench = Bench(options)
    report: dict[str, Any] = {"environment": environment(bench, stood_in)}
    print(json.dumps(report["environment"], indent=1), flush=True)
    failed = []
    for name in options.sections:
        print(f"== {name}", flush=True)
        begin = time.perf_counter()
        try:
            report[name] = _SECTIONS[name](bench)
        except Exception:
            failed.append(name)
            report[name] = {"error": traceback.format_exc()}
            print(report[name]["error"], flush=True)
        print(f"   {time.perf_counter() - begin:.1f} s", flush=True)
        if options.json:
            options.json.write_text(json.dumps(report, indent=1))
    compared = [result for result in report.get("values", {}).values() if isinstance(result, dict)]
    wrong = sum(result["refreshes_differing"] for result in compared)
    verdict = f"failed: {', '.join(failed)}" if failed else "all sections ran"
    print(f"== {verdict}; {wrong} refreshes differ", flush=True)
    return 1 if failed or wrong else 0
