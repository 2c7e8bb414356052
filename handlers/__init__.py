"""The package inside every archive. Direction of imports, low to high:

errors, metrics -> config -> protocol, engines -> pipeline -> warm_up -> batching -> continuous -> base
    -> text, vision, tensor_models -> image_text -> tasks
"""

import sys

# With this package, on which OpenVINO depends, OpenVINO reports each import and conversion to its makers.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
