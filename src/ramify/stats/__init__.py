"""What may be concluded: intervals, tests, power, evidence."""
