"""What a user writes, and what it means."""
