"""What travels: spaces, chunks, messages, policy records, and the log they travel in."""
