"""Adaptive batching: the worker decides itself which waiting requests run next, when, and who is refused.

    core           submit, cancel, close: requests and threads, behind one lock
      arrivals       a request as it comes: admitted or refused, decoded
      guard          the end of the process by a bug on a thread
    trial          precision and streams, as the worker loads
    measurements   what micro-batches took, remembered
    scheduler      the queue, its engine and admission                        pure: every method
    request_queue  who waits, in which order                                is told the time
    batches        who shares a micro-batch
    engine         what runs, and how long micro-batches take
    policy         the archive's settings

docs/explanation/batching.md has the rules of the scheduler, each with what it is worth. The package knows no server:
handlers.continuous is TorchServe's. It may import handlers.pipeline and what is below it.
"""
