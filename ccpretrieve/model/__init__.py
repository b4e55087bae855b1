"""Text to vectors, and what learns."""
