"""Is `ramify why` right? Generated errands of which the step that loses them is known, simple rules,
and the nearest peer's estimator."""
