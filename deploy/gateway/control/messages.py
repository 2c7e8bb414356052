"""The messages of Triton's gRPC service that the control process answers; handlers.protocol has those of inference.

https://github.com/triton-inference-server/common/blob/main/protobuf/grpc_service.proto and model_config.proto are the
protocol. What this project never answers is left out: streams, shared memory, tracing and logging, and most of a
model's configuration.
"""

from handlers.protocol.grpc_messages import PACKAGE, classes

SERVICE = f"{PACKAGE}.GRPCInferenceService"

# See `handlers.protocol.grpc_messages.classes`.
_MESSAGES = {
    # Of grpc.health.v1; its status is an enumeration, which is written as a number.
    "CheckRequest": "service string 1",
    "CheckResponse": "status int32 1",
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
_ENUMS = {
    "DataType": "TYPE_INVALID TYPE_BOOL TYPE_UINT8 TYPE_UINT16 TYPE_UINT32 TYPE_UINT64 TYPE_INT8 TYPE_INT16 TYPE_INT32 "
    "TYPE_INT64 TYPE_FP16 TYPE_FP32 TYPE_FP64 TYPE_STRING TYPE_BF16",
    "ModelInstanceGroup.Kind": "KIND_AUTO KIND_GPU KIND_CPU KIND_MODEL",
}

# The class of each message by its name.
CLASSES = classes(_MESSAGES, _ENUMS)
