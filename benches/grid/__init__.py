"""Parts of `launch.py`: what is measured at the points of a grid of batches, steps and lengths."""
