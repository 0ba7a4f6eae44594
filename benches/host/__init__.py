"""Benches of what runs on the host: the Rust ones, and the torch refresh that `host_torch.py` compares with."""
