import ramify.engine  # noqa: F401  (pins the matrix kernels before torch first uses them)
