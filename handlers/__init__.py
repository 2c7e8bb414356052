"""The package inside every archive. Direction of imports, low to high:

errors, metrics -> config -> protocol, engines -> pipeline -> warm_up -> batching -> continuous -> base
    -> text, vision, tensor_models -> image_text -> tasks
"""
