"""Adaptive batching: the worker decides itself which waiting requests run next, when, and who is refused.

    worker         wires it all; the frontend's thread
      arrivals       a request as it comes: admitted or refused, decoded      threads and the socket to
      engine_threads micro-batch after micro-batch on each stream             TorchServe's frontend
      in_flight      requests, and their replies
      shared_state   what the threads share, behind one lock
      frontend       TorchServe's messages
      trial          precision and streams, as the worker loads
      measurements   what micro-batches took, remembered
    scheduler      the queue, its engine and admission                        pure: every method
      request_queue  who waits, in which order                                is told the time
      batches        who shares a micro-batch
      engine         what runs, and how long micro-batches take
      timing         when to answer the frontend
      policy         the archive's settings

docs/architecture.md has the rules of the scheduler, each with what it is worth. The package may import
handlers.pipeline and what is below it.
"""
