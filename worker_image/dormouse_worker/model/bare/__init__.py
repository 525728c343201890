"""Models that our kernels compute from weights to tokens, in a process that never imports torch."""
