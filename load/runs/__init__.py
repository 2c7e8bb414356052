"""Makes whole runs: scenarios, searches, sessions of several steps, their files, and the advice that follows from them.

It may import load.generate and what is below it, and the client for a model's registration.
"""
