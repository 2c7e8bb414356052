"""Our messages of Triton's service against those of its own client, which were made from its own definitions."""

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from tritonclient.grpc import model_config_pb2, service_pb2

from handlers.protocol import grpc_messages

NUMBERS = {"int32": -7, "int64": -(2**40), "uint32": 2**31 + 1, "uint64": 2**63 + 5, "float": 0.5, "double": 0.1}


def theirs(name: str) -> type[Message]:
    """Triton's class of a message, within another maybe."""
    first, *inner = name.split(".")
    cls = getattr(service_pb2, first, None) or getattr(model_config_pb2, first)
    for each in inner:
        cls = getattr(cls, each)
    return cls  # type: ignore[no-any-return]


def value_of(field: FieldDescriptor, depth: int) -> Any:
    if field.message_type is not None:
        return fields_of(field.message_type, depth)
    if field.enum_type is not None:
        return len(field.enum_type.values) - 1
    kind = next(
        name[5:].lower()
        for name, code in vars(FieldDescriptor).items()
        if name.startswith("TYPE_") and code == field.type
    )
    return {"string": "텍스트", "bytes": b"\x00\xff", "bool": True, **NUMBERS}[kind]


def fields_of(descriptor: Any, depth: int = 0) -> dict[str, Any]:
    """Some value for every field, of a oneof's for the last one."""
    values: dict[str, Any] = {}
    assert depth < 8
    for field in descriptor.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            values[field.name] = {"key": value_of(field.message_type.fields_by_name["value"], depth + 1)}
        else:
            value = value_of(field, depth + 1)
            values[field.name] = [value, value] if field.is_repeated else value
    return values


def filled(cls: type[Message]) -> Message:
    return cls(**fields_of(cls.DESCRIPTOR))


@pytest.mark.parametrize("name", list(grpc_messages.CLASSES))
def test_message_is_read_by_tritons_own_client_as_it_was_written(name: str) -> None:
    ours = filled(grpc_messages.CLASSES[name])
    read = theirs(name)()
    read.ParseFromString(ours.SerializeToString())
    assert MessageToDict(read, preserving_proto_field_name=True) == MessageToDict(
        ours, preserving_proto_field_name=True
    )
    # And nothing in it that theirs does not know.
    read.DiscardUnknownFields()
    back = grpc_messages.CLASSES[name]()
    back.ParseFromString(read.SerializeToString())
    assert back == ours


@pytest.mark.parametrize("name", list(grpc_messages.CLASSES))
def test_every_field_has_the_type_and_oneof_of_tritons_own(name: str) -> None:
    for field in grpc_messages.CLASSES[name].DESCRIPTOR.fields:
        other = theirs(name).DESCRIPTOR.fields_by_name[field.name]
        assert (field.number, field.type, field.is_repeated) == (other.number, other.type, other.is_repeated)
        oneofs = [each.containing_oneof and each.containing_oneof.name for each in (field, other)]
        assert oneofs[0] == oneofs[1]
        if field.enum_type is not None:
            assert other.enum_type is not None
            assert field.enum_type.values_by_name.keys() == other.enum_type.values_by_name.keys()


def test_messages_that_both_ways_of_inference_use_lack_no_field() -> None:
    for name in ("ModelInferRequest", "ModelInferResponse", "InferParameter", "InferTensorContents"):
        ours, others = grpc_messages.CLASSES[name].DESCRIPTOR, theirs(name).DESCRIPTOR
        assert ours.fields_by_name.keys() == others.fields_by_name.keys()


def test_message_is_an_attribute_of_the_module() -> None:
    assert grpc_messages.ServerLiveResponse(live=True).SerializeToString() == b"\x08\x01"
    with pytest.raises(AttributeError, match="ModelStreamInferRequest"):
        _ = grpc_messages.ModelStreamInferRequest
