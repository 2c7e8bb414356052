-- gRPC, behind the bridge: the bridge takes nothing but application/x-protobuf, so every other answer becomes an empty
-- one of that type, with the status and the message that it stands for.

local ABOUT = "gateway"
-- HTTP status of TorchServe, or of a node's own Envoy -> gRPC status, and its message.
local MEANING = {
  ["400"] = {"3", "the request is invalid"},
  -- The gateway knows the model, and the node does not have it yet, or no more.
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
  -- What a filter in front of the bridge answers passes here too, and not the bridge.
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
    -- Envoy's own answer.
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
