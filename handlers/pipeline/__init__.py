"""The steps of a request through a task, the same in both modes: flow.py has them from top to bottom.

task            the hooks that the steps call
jobs            a request at work, its items, and the headers of its response
micro_batches   which items go through the model together
failures        which items of a failed step are at fault
"""
