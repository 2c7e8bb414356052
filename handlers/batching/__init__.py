"""Adaptive batching: the worker decides which waiting requests run next, when, and which requests it rejects.

core           submit, cancel, step, close: requests and threads, behind one lock
  pending        a submitted request, its items and the future of its response
  arrivals       admission and decoding of submitted requests
  equal_items    keys of equal items, and a cache of results
  guard          ends the process after a bug on a thread
trial          chooses precision and streams while the worker loads
accuracy       precisions that agree with fp32 on this processor
measurements   durations of micro-batches, stored in a file
scheduler      the queue, its engine and admission              pure: the caller
request_queue  waiting items and their order                    passes the time
batches        which items share a micro-batch
engine         running micro-batches, and how long each takes
policy         the archive's settings
"""
