-- gRPC, behind the bridge: the bridge accepts only application/x-protobuf, so any other response becomes an empty
-- message of that type, with its status and message.

-- A header of this script defines NODES: status of TorchServe or a node's Envoy -> meaning.
local ABOUT = "gateway"

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
    local meaning = NODES[status] or NODES["502"]
    headers:replace("x-grpc-status", meaning.grpc)
    headers:replace("x-grpc-message", meaning.message)
  end
  headers:replace("content-type", "application/x-protobuf")
  local body = handle:body()
  if body then
    body:setBytes("")
  end
end
