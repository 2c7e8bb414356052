-- gRPC, behind the bridge: the bridge accepts only application/x-protobuf, so any other response becomes an empty
-- message of that type, with its status and message.

local ABOUT = "gateway"
-- HTTP status of TorchServe or a node's Envoy -> gRPC status and message.
local MEANING = {
  ["400"] = {"3", "the request is invalid"},
  -- The gateway knows the model, and the node no longer has it, or does not have it yet.
  ["404"] = {"14", "the node does not serve this model at the moment"},
  ["413"] = {"8", "the request is too large"},
  ["429"] = {"14", "too many requests"},
  ["500"] = {"13", "the worker died, or did not answer in time"},
  ["502"] = {"14", "the node gave no valid answer"},
  ["503"] = {"14", "no worker can take the request now"},
  ["507"] = {"13", "the worker ran out of memory"},
}
local OTHER = {"13", "the node gave no valid answer"}

function envoy_on_request(handle)
  handle:streamInfo():dynamicMetadata():set(ABOUT, "is_bridged", true)
end

function envoy_on_response(handle)
  -- The response of a filter before the bridge passes here, and does not pass the bridge.
  local about = handle:streamInfo():dynamicMetadata():get(ABOUT)
  if not about or not about["is_bridged"] then
    return
  end
  local headers = handle:headers()
  local status = headers:get(":status")
  if status == "200" and headers:get("content-type") == "application/x-protobuf" then
    return
  end
  if headers:get("grpc-status") then
    -- Envoy's own response.
    headers:replace("x-grpc-status", headers:get("grpc-status"))
    headers:replace("x-grpc-message", headers:get("grpc-message") or "")
    headers:remove("grpc-status")
    headers:remove("grpc-message")
  elseif not headers:get("x-grpc-status") then
    local meaning = MEANING[status] or OTHER
    headers:replace("x-grpc-status", meaning[1])
    headers:replace("x-grpc-message", meaning[2])
  end
  headers:replace("content-type", "application/x-protobuf")
  local body = handle:body()
  if body then
    body:setBytes("")
  end
end
