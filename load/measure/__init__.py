"""What is recorded of requests and answers, and what the numbers amount to.

It may import load.errors.
"""
