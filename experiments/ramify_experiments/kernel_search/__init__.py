"""The experiments of kernel-search: its suite of kernels, its reproduction, and its null and planted cases."""
