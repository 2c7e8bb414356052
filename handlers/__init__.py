"""What goes inside every archive. Direction of imports, low to high:

errors, metrics -> config -> protocol, engines -> pipeline -> warm_up -> batching -> base -> text, vision -> tasks
"""
