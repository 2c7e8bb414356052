-- gRPC, behind the bridge: the bridge accepts only PROTOBUF, so any other response becomes an empty
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
  if status == "200" and headers:get("content-type") == "$PROTOBUF" then
    return
  end
  if headers:get("grpc-status") then
    -- Envoy's own response.
    headers:replace("$GRPC_STATUS_HEADER", headers:get("grpc-status"))
    headers:replace("$GRPC_MESSAGE_HEADER", headers:get("grpc-message") or "")
    headers:remove("grpc-status")
    headers:remove("grpc-message")
  elseif not headers:get("$GRPC_STATUS_HEADER") then
    local meaning = NODES[status] or NODES["502"]
    headers:replace("$GRPC_STATUS_HEADER", meaning.grpc)
    headers:replace("$GRPC_MESSAGE_HEADER", meaning.message)
  end
  headers:replace("content-type", "$PROTOBUF")
  local body = handle:body()
  if body then
    body:setBytes("")
  end
end
