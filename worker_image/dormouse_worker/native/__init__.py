"""The kernels for processors, in C++: how they are compiled, found and called. No torch, no numpy: addresses only."""
