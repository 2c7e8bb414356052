"""Our messages of Triton's service against those of its own client, which were made from its own definitions."""

from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc import model_config_pb2, service_pb2

from deploy.protocol import messages_pb2
from handlers.protocol import open_inference_pb2

MESSAGES = {
    **open_inference_pb2.DESCRIPTOR.message_types_by_name,
    **messages_pb2.DESCRIPTOR.message_types_by_name,
}

# A client may send any field of these, and read any.
WHOLE = {"ModelInferRequest", "ModelInferResponse", "InferParameter", "InferTensorContents"}


def described(field: FieldDescriptor) -> tuple[Any, ...]:
    """List all that decides how a field is written."""
    oneof, of, enum = field.containing_oneof, field.message_type, field.enum_type
    values = None if enum is None else {value.name: value.number for value in enum.values}
    entry = [described(each) for each in of.fields] if of is not None and of.GetOptions().map_entry else None
    kind = None if of is None or entry else of.name
    return field.number, field.type, field.is_repeated, oneof and oneof.name, kind, entry, values


def check(ours: Descriptor, theirs: Descriptor, is_whole: bool) -> None:
    for field in ours.fields:
        assert described(field) == described(theirs.fields_by_name[field.name])
    if is_whole:
        assert ours.fields_by_name.keys() == theirs.fields_by_name.keys()
    for name, inner in ours.nested_types_by_name.items():
        check(inner, theirs.nested_types_by_name[name], is_whole)


# grpc.health.v1 is gRPC's own; tests/deploy/gateway/test_protocol.py has its bytes.
@pytest.mark.parametrize("name", sorted(MESSAGES.keys() - {"CheckRequest", "CheckResponse"}))
def test_every_field_is_tritons_own(name: str) -> None:
    theirs = getattr(service_pb2, name, None) or getattr(model_config_pb2, name)
    check(MESSAGES[name], theirs.DESCRIPTOR, is_whole=name in WHOLE)
