"""The dense Qwen3 architecture (arXiv 2505.09388): configuration, model, weights."""
