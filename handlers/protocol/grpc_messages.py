"""The messages of an inference by Triton's gRPC service, inference.GRPCInferenceService, made as this is imported.

    one line a message -> classes -> descriptors in a pool of their own -> CLASSES["ModelInferRequest"](...)

https://github.com/triton-inference-server/common/blob/main/protobuf/grpc_service.proto is the protocol: names and
numbers of fields are theirs. A field that a client sends and that is left out is ignored. deploy.gateway.control has
the other messages of the service. The import takes 130 ms, most of it protobuf's own: a worker imports this once it has
a gateway in front of it.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "inference"
NO_ENUMS: Mapping[str, str] = {}

_INFERENCE = {
    "InferParameter": "bool_param bool 1:parameter_choice, int64_param int64 2:parameter_choice,"
    "string_param string 3:parameter_choice, double_param double 4:parameter_choice,"
    "uint64_param uint64 5:parameter_choice",
    "InferTensorContents": "bool_contents bool* 1, int_contents int32* 2, int64_contents int64* 3,"
    "uint_contents uint32* 4, uint64_contents uint64* 5, fp32_contents float* 6, fp64_contents double* 7,"
    "bytes_contents bytes* 8",
    "ModelInferRequest": "model_name string 1, model_version string 2, id string 3, parameters InferParameter% 4,"
    "inputs ModelInferRequest.InferInputTensor* 5, outputs ModelInferRequest.InferRequestedOutputTensor* 6,"
    "raw_input_contents bytes* 7",
    "ModelInferRequest.InferInputTensor": "name string 1, datatype string 2, shape int64* 3,"
    "parameters InferParameter% 4, contents InferTensorContents 5",
    "ModelInferRequest.InferRequestedOutputTensor": "name string 1, parameters InferParameter% 2",
    "ModelInferResponse": "model_name string 1, model_version string 2, id string 3, parameters InferParameter% 4,"
    "outputs ModelInferResponse.InferOutputTensor* 5, raw_output_contents bytes* 6",
    "ModelInferResponse.InferOutputTensor": "name string 1, datatype string 2, shape int64* 3,"
    "parameters InferParameter% 4, contents InferTensorContents 5",
}


def classes(messages: Mapping[str, str], enums: Mapping[str, str] = NO_ENUMS) -> dict[str, Any]:
    """Make the classes of messages, by name; one within another is an attribute of that class, too."""
    # Fields are name, type, number. Behind a type, * is a repeated field and % a map from strings to it; behind a
    # number, :NAME is the oneof that it belongs to. An enumeration has its values from 0.
    file = FileDescriptorProto(name="handlers/grpc_service.proto", package=PACKAGE, syntax="proto3")
    described: dict[str, DescriptorProto] = {}
    for name, fields in messages.items():
        parent, _, own = name.rpartition(".")
        described[name] = described[parent].nested_type.add() if parent else file.message_type.add()
        described[name].name = own
        for field in filter(None, fields.split(",")):
            _add_field(described[name], name, field, enums)
    for name, values in enums.items():
        parent, _, own = name.rpartition(".")
        enum: EnumDescriptorProto = (described[parent] if parent else file).enum_type.add()
        enum.name = own
        for number, value in enumerate(values.split()):
            enum.value.add(name=value, number=number)
    # A pool of its own: a process may have Triton's own messages, of the same names, in the common one.
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in messages}


def _add_field(message: DescriptorProto, message_name: str, spec: str, enums: Mapping[str, str]) -> None:
    name, kind, number_and_oneof = spec.split()
    number, _, oneof = number_and_oneof.partition(":")
    is_map = kind.endswith("%")
    is_repeated = is_map or kind.endswith("*")
    kind = kind.rstrip("%*")
    label = FieldDescriptorProto.LABEL_REPEATED if is_repeated else FieldDescriptorProto.LABEL_OPTIONAL
    field = message.field.add(name=name, number=int(number), label=label)
    if is_map:
        # A map is a list of messages with a key and a value, which the compiler names so.
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _add_field(entry, "", "key string 1", enums)
        _add_field(entry, "", f"value {kind} 2", enums)
        kind = f"{message_name}.{entry.name}"
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    elif kind[0].islower():
        field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    else:
        field.type = FieldDescriptorProto.TYPE_ENUM if kind in enums else FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{kind}"
    if oneof:
        if oneof not in [known.name for known in message.oneof_decl]:
            message.oneof_decl.add(name=oneof)
        field.oneof_index = [known.name for known in message.oneof_decl].index(oneof)


CLASSES = classes(_INFERENCE)
