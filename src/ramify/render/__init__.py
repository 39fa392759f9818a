"""How it is shown: one escape function, one terminal sanitizer, pictures as SVG."""
