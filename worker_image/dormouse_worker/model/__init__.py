"""The model on tensors: loading, memory, the paged cache, attention, running, sampling. The only importer of torch."""
