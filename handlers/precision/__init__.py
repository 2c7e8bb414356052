"""The comparison of a precision with fp32, where an archive is built and where it is served.

samples      inputs that an archive keeps, and their answers in fp32
answers      items -> the task's own hooks, on an engine -> answers; those in two precisions -> a Proof
comparisons  answers in two precisions -> figures
"""
