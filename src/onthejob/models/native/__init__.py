"""The sampler's compiled engine: a forward pass in C (`forward.c`), built per instruction set and called through ctypes."""
