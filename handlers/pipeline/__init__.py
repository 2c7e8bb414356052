"""The steps of a request through a task, the same in both modes: flow.py has them from top to bottom.

task            the hooks that the steps call
jobs            a request at work, and its items
reply_headers   the headers of a response
micro_batches   which items go through the model together
failures        which items of a failed step are at fault
"""
