"""Rendering: the escape function, the terminal sanitizer, pictures as SVG."""
