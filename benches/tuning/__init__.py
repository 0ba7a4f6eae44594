"""Parts of `tune.py`: kernels by tiling, their GPU time, and the regret of a rule."""
