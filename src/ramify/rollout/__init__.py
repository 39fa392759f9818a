"""Grow a tree: run, fork, scan, replay, compact; in this process or on workers."""
