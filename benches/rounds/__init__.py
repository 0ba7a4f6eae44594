"""Parts of `sglang_rounds.py`: SGLang's own backend classes on speculative rounds, with the plugin and without."""
