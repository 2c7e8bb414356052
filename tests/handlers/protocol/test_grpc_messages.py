"""Our messages of Triton's service against those of its own client, which were made from its own definitions."""

from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc import model_config_pb2, service_pb2

from deploy.gateway.control import messages
from handlers.protocol import grpc_messages

CLASSES = grpc_messages.CLASSES | messages.CLASSES

# A client may send any field of these, and read any.
WHOLE = {"ModelInferRequest", "ModelInferResponse", "InferParameter", "InferTensorContents"}


def theirs(name: str) -> Descriptor:
    """Find Triton's message of a name, within another maybe."""
    first, *inner = name.split(".")
    found = (getattr(service_pb2, first, None) or getattr(model_config_pb2, first)).DESCRIPTOR
    for each in inner:
        found = found.nested_types_by_name[each]
    assert isinstance(found, Descriptor)
    return found


def described(field: FieldDescriptor) -> tuple[Any, ...]:
    """List all that decides how a field is written."""
    oneof, of, enum = field.containing_oneof, field.message_type, field.enum_type
    values = None if enum is None else {value.name: value.number for value in enum.values}
    entry = [described(each) for each in of.fields] if of is not None and of.GetOptions().map_entry else None
    kind = None if of is None or entry else of.name
    return field.number, field.type, field.is_repeated, oneof and oneof.name, kind, entry, values


# grpc.health.v1 is gRPC's own; tests/deploy/gateway/test_protocol.py has its bytes.
@pytest.mark.parametrize("name", sorted(CLASSES.keys() - {"CheckRequest", "CheckResponse"}))
def test_every_field_is_tritons_own(name: str) -> None:
    ours, others = CLASSES[name].DESCRIPTOR, theirs(name)
    for field in ours.fields:
        assert described(field) == described(others.fields_by_name[field.name])
    if name in WHOLE:
        assert ours.fields_by_name.keys() == others.fields_by_name.keys()
