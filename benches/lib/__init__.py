"""What several benches share: timing, workloads, results, and SGLang's kernels."""
