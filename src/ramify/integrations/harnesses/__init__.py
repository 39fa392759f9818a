"""Other people's agents and harnesses: played as they are, and pins for their compaction."""
