"""What goes inside every archive. Direction of imports, low to high:

errors, metrics -> config -> protocol, engines -> pipeline -> scheduling -> adaptive -> base -> text, vision -> tasks
"""
