"""What a caller of the server imports."""
