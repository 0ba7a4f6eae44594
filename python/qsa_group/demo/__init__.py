"""A serving loop that refreshes every round through plans, and checks every value."""
