"""Whole speculative rounds on SGLang's own backend classes, with the plugin and without it, in one process.

    python benches/sglang_rounds.py --workload azure_llm_conv.csv --workload azure_llm_code.csv --json rounds.json

Sections, each of which stands alone and is reported even when another one fails:

- stall: the first replay of every bucket after capture, in a fresh Triton cache;
- values: rounds of the traces with bucket padding; every buffer that a graph reads is copied out by the graph itself,
  and compared after each replay;
- launches: kernels that are started outside the graphs, counted with PyTorch's profiler;
- host: time of a whole `init_forward_metadata_out_graph`, and of the three of a round;
- round: a round with its replays, waited for.

The classes are SGLang's, unmodified: the hooked ones, and the same source loaded once more, which nothing hooks.

Where SGLang's dependencies cannot be installed, its wheel and these are enough, each without its own dependencies:
sglang 0.5.23, msgspec, orjson, pybase64, pyzmq, pydantic 2.14.4, pydantic_core 2.50.5, annotated-types, starlette,
fastapi, python-multipart, typing-inspection, traitlets, ipython, loguru, dill, cffi, zstandard, and the wheel of this
package. `rounds/standin.py` stands in for the compiled rest, and its names are printed.

`--dry-run-cpu` runs the same code without a GPU: the host executor, and stand-ins for the graphs. Nothing is recorded
then, so that both settings of the plugin refresh before each replay.
"""

from __future__ import annotations

import os
import sys
import tempfile

from rounds import standin
from rounds.options import arguments


def main(argv: list[str] | None = None) -> int:
    """Runs the bench. The exit code is 1 where a section failed or a value differs."""
    options = arguments(__doc__, argv)
    # Before Triton is imported: what is compiled here must not come from an earlier run.
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="qsa_group_triton_")
    # Before SGLang is imported.
    stood_in = standin.install()
    from rounds.run import run

    return run(options, stood_in)


if __name__ == "__main__":
    sys.exit(main())
