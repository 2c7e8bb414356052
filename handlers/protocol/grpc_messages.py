"""The messages of Triton's gRPC service, inference.GRPCInferenceService, made as this module is imported.

    _MESSAGES, one line a message -> descriptors in a pool of their own -> CLASSES["ModelInferRequest"](...)

https://github.com/triton-inference-server/common/blob/main/protobuf/grpc_service.proto and model_config.proto are the
protocol: names and numbers of fields are theirs. What this project never answers is left out: streams, shared memory,
tracing and logging, and most of a model's configuration. A field that a client sends and that is left out is ignored.

The import takes 130 ms, most of it protobuf's own: a worker imports this once it has a gateway in front of it.
"""

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
SERVICE = f"{PACKAGE}.GRPCInferenceService"

# Name of a message -> its fields: name, type, number. Behind a type, * is a repeated field and % a map from strings to
# it; behind a number, :NAME is the oneof that it belongs to. A message within another has both names.
_MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live bool 1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready bool 1",
    "ModelReadyRequest": "name string 1, version string 2",
    "ModelReadyResponse": "ready bool 1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name string 1, version string 2, extensions string* 3",
    "ModelMetadataRequest": "name string 1, version string 2",
    "ModelMetadataResponse": "name string 1, versions string* 2, platform string 3,"
    "inputs ModelMetadataResponse.TensorMetadata* 4, outputs ModelMetadataResponse.TensorMetadata* 5",
    "ModelMetadataResponse.TensorMetadata": "name string 1, datatype string 2, shape int64* 3",
    # Inference.
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
    # A model's configuration.
    "ModelConfigRequest": "name string 1, version string 2",
    "ModelConfigResponse": "config ModelConfig 1",
    "ModelConfig": "name string 1, platform string 2, backend string 17, version_policy ModelVersionPolicy 3,"
    "max_batch_size int32 4, input ModelInput* 5, output ModelOutput* 6,"
    "dynamic_batching ModelDynamicBatching 11:scheduling_choice, instance_group ModelInstanceGroup* 7,"
    "parameters ModelParameter% 14",
    "ModelVersionPolicy": "all ModelVersionPolicy.All 2:policy_choice",
    "ModelVersionPolicy.All": "",
    "ModelInput": "name string 1, data_type DataType 2, dims int64* 4",
    "ModelOutput": "name string 1, data_type DataType 2, dims int64* 3",
    "ModelDynamicBatching": "preferred_batch_size int32* 1, max_queue_delay_microseconds uint64 2",
    "ModelInstanceGroup": "name string 1, count int32 2, kind ModelInstanceGroup.Kind 4",
    "ModelParameter": "string_value string 1",
    # Statistics.
    "ModelStatisticsRequest": "name string 1, version string 2",
    "ModelStatisticsResponse": "model_stats ModelStatistics* 1",
    "ModelStatistics": "name string 1, version string 2, last_inference uint64 3, inference_count uint64 4,"
    "execution_count uint64 5, inference_stats InferStatistics 6, batch_stats InferBatchStatistics* 7",
    "StatisticDuration": "count uint64 1, ns uint64 2",
    "InferStatistics": "success StatisticDuration 1, fail StatisticDuration 2, queue StatisticDuration 3,"
    "compute_input StatisticDuration 4, compute_infer StatisticDuration 5, compute_output StatisticDuration 6,"
    "cache_hit StatisticDuration 7, cache_miss StatisticDuration 8",
    "InferBatchStatistics": "batch_size uint64 1, compute_input StatisticDuration 2,"
    "compute_infer StatisticDuration 3, compute_output StatisticDuration 4",
    # The repository.
    "RepositoryIndexRequest": "repository_name string 1, ready bool 2",
    "RepositoryIndexResponse": "models RepositoryIndexResponse.ModelIndex* 1",
    "RepositoryIndexResponse.ModelIndex": "name string 1, version string 2, state string 3, reason string 4",
    "ModelRepositoryParameter": "bool_param bool 1:parameter_choice, int64_param int64 2:parameter_choice,"
    "string_param string 3:parameter_choice, bytes_param bytes 4:parameter_choice",
    "RepositoryModelLoadRequest": "repository_name string 1, model_name string 2,"
    "parameters ModelRepositoryParameter% 3",
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": "repository_name string 1, model_name string 2,"
    "parameters ModelRepositoryParameter% 3",
    "RepositoryModelUnloadResponse": "",
}
# Name of an enumeration -> its values, from 0.
_ENUMS = {
    "DataType": "TYPE_INVALID TYPE_BOOL TYPE_UINT8 TYPE_UINT16 TYPE_UINT32 TYPE_UINT64 TYPE_INT8 TYPE_INT16 TYPE_INT32 "
    "TYPE_INT64 TYPE_FP16 TYPE_FP32 TYPE_FP64 TYPE_STRING TYPE_BF16",
    "ModelInstanceGroup.Kind": "KIND_AUTO KIND_GPU KIND_CPU KIND_MODEL",
}


def _file() -> FileDescriptorProto:
    """Describe all messages and enumerations as one file of the language proto3."""
    file = FileDescriptorProto(name="handlers/grpc_service.proto", package=PACKAGE, syntax="proto3")
    described: dict[str, DescriptorProto] = {}
    for name, fields in _MESSAGES.items():
        parent, _, own = name.rpartition(".")
        described[name] = described[parent].nested_type.add() if parent else file.message_type.add()
        described[name].name = own
        for field in filter(None, fields.split(",")):
            _add_field(described[name], name, *field.split())
    for name, values in _ENUMS.items():
        parent, _, own = name.rpartition(".")
        enum: EnumDescriptorProto = (described[parent] if parent else file).enum_type.add()
        enum.name = own
        for number, value in enumerate(values.split()):
            enum.value.add(name=value, number=number)
    return file


def _add_field(message: DescriptorProto, message_name: str, name: str, kind: str, number_and_oneof: str) -> None:
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
        _add_field(entry, "", "key", "string", "1")
        _add_field(entry, "", "value", kind, "2")
        kind = f"{message_name}.{entry.name}"
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    elif kind[0].islower():
        field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    else:
        field.type = FieldDescriptorProto.TYPE_ENUM if kind in _ENUMS else FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{kind}"
    if oneof:
        if oneof not in [known.name for known in message.oneof_decl]:
            message.oneof_decl.add(name=oneof)
        field.oneof_index = [known.name for known in message.oneof_decl].index(oneof)


def _classes() -> dict[str, Any]:
    # A pool of its own: a process may have Triton's own messages, of the same names, in the common one.
    pool = DescriptorPool()
    pool.Add(_file())
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _MESSAGES}


# The class of each message by its name; one within another is an attribute of that class, too.
CLASSES = _classes()
