"""The names and limits of the wire, once: headers, media types, routes, limits. Pure.

Handlers, hosts and the control process import them; deploy.gateway.envoy.resources writes them into Envoy's templates
and scripts, where `$NAME` stands. handlers.protocol.statuses has the statuses, codings the codings of bodies.
"""

# Headers of a request, by which `headers.Headers` finds them.
PRIORITY_HEADER = "x-priority"
TIMEOUT_HEADER = "x-timeout-ms"
TERMS_HEADERS = (PRIORITY_HEADER, TIMEOUT_HEADER)
# The identity of a model's vectors, in each of its responses; a request that has another is rejected.
SPACE_HEADER = "x-vector-space"
API_HEADER = "x-api"  # the API of embedding servers: a value of APIS; the gateway sets it by the path
METADATA_HEADER = "x-model-metadata"  # asks for the model's metadata; the gateway removes a client's
SAMPLE = "sample"  # as its value asks for the answer to the model's own sample
# Envoy sends the original path in this header when it rewrites the path; it removes the header of clients.
ORIGINAL_PATH_HEADER = "x-envoy-original-path"
CLIENT_HEADER = "x-client"  # the name of a key, which the gateway sets and no node receives
# Headers of a response. Envoy turns the first two into the status of a gRPC call.
GRPC_STATUS_HEADER = "X-Grpc-Status"
GRPC_MESSAGE_HEADER = "X-Grpc-Message"
CACHE_HEADER = "X-Cache"  # "hit" if the cache had the results of all items
TOKENS_HEADER = "X-Tokens"  # the tokens of the request's items that did not fail, as `usage` counts them
# Of the gateway's 429: a key's tokens_per_minute, by OpenAI's name.
BUDGET_HEADER = "X-RateLimit-Limit-Tokens"
FINGERPRINT_HEADER = "X-Fingerprint"  # of the metadata: a hash of all that the archive was built from
SHOULD_RETRY_HEADER = "X-Should-Retry"  # "false": OpenAI's clients do not retry a request that failed with 500 or more
# Of both: the number of bytes of the JSON document, if binary tensors follow it.
LENGTH_HEADER = "Inference-Header-Content-Length"

# The media type of requests that Envoy's bridge makes of gRPC calls, and of their responses.
PROTOBUF = "application/x-protobuf"
BINARY = "application/octet-stream"  # of a response with binary tensors

# Limits that hosts and the gateway share.
FORM_FIELDS = 200  # the most fields of a form: a worker spends microseconds on each
PART_HEAD_BYTES = 4096  # of a part's head
BOUNDARY_CHARACTERS = 70  # RFC 2046
PATH_BYTES = 3072  # TorchServe's HTTP library accepts a request line of 4096; a model's name may lengthen the path
NAME_BYTES = 1024  # of a model or version: percent-encoded, three times as many fit into that line
# The most tensors, parameters and outputs of a message or document: 90,000 took two seconds of a worker's only thread.
MESSAGE_FIELDS = 1000

# Triton's gRPC service, and its methods that every host serves.
SERVICE = "inference.GRPCInferenceService"
GRPC_METHODS = (
    *("ModelInfer", "ServerLive", "ServerReady", "ServerMetadata"),
    *("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"),
)
# Paths of the APIs of embedding servers -> values of API_HEADER (handlers.protocol.retrieval).
APIS = {
    **dict.fromkeys(("/v1/embeddings", "/embed"), "embeddings"),
    **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/rerank"), "rerank"),
    **{f"/v{version}/embed": f"cohere-v{version}" for version in (1, 2)},
    **{"/embed_sparse": "sparse", "/pooling": "pooling"},
}
# The same paths as a pattern: Envoy rejects one that is as long as their list.
API_PATTERN = "/(v1/embeddings|(v[12]/)?(rerank|embed)|embed_sparse|pooling)"
# Paths of clients that name no model (text-embeddings-inference's, and Cohere's first), and the API of each.
NAMELESS = {"/embed": "embeddings", "/v1/embed": "embeddings", "/rerank": "rerank", "/embed_sparse": "sparse"}
JSON_PATHS = "/(v[12]/|rerank|embed|pooling).*"  # accept only JSON: `curl -d` sends it as a form
