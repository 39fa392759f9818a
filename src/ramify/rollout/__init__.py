"""Grow a tree: run, fork, scan, replay."""
