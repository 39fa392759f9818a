"""How often `ramify fix` accepts an edit that changes nothing, and how often one that helps."""
