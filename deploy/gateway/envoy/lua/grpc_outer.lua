-- gRPC, before the bridge: converts the model of a ModelInferRequest to a path, and sets the status of a response from
-- its GRPC_STATUS_HEADER. Below sums.lua.

local ABOUT = "gateway"
local INFER = "/$SERVICE/ModelInfer"
local INVALID_ARGUMENT = "$INVALID_ARGUMENT"
-- Bytes of a frame's header: one flag, and four bytes for the length of the message.
local HEAD = 5
local NAME_BYTES = $NAME_BYTES
local function fail(handle, status, message)
  handle:respond({[":status"] = "200", ["content-type"] = "application/grpc", ["grpc-status"] = status,
    ["grpc-message"] = message}, "")
end

-- The names must be within these first bytes and fields: Triton's clients write them first, and a loop over a large
-- message would block this thread.
local PREFIX_BYTES, FIELDS = 65536, $MESSAGE_FIELDS

-- Read a varint at a position (the first is 1); return its value and the next position, or nil.
local function read_varint(bytes, at)
  local value, scale = 0, 1
  for place = at, math.min(at + 9, #bytes) do
    local byte = bytes:byte(place)
    value = value + (byte % 128) * scale
    if byte < 128 then
      return value, place + 1
    end
    scale = scale * 128
  end
end

-- Find fields 1 and 2, model_name and model_version; skip all other fields by their length.
local function find_model(body)
  local length = body:length() - HEAD
  local bytes = length > 0 and body:getBytes(HEAD, math.min(length, PREFIX_BYTES)) or ""
  local at, found = 1, {}
  for _ = 1, FIELDS do
    if at > #bytes then
      break
    end
    local key, size
    key, at = read_varint(bytes, at)
    if not key then
      return nil
    end
    local field, wire = math.floor(key / 8), key % 8
    if wire == 0 then
      size, at = read_varint(bytes, at)
      size = size and 0
    elseif wire == 1 then
      size = 8
    elseif wire == 2 then
      size, at = read_varint(bytes, at)
    elseif wire == 5 then
      size = 4
    end
    if not size or at + size > length + 1 then
      return nil
    end
    if wire == 2 and field <= 2 then
      found[field] = size <= NAME_BYTES and bytes:sub(at, at + size - 1) or "?"
    end
    at = at + size
  end
  return found[1] or "", found[2] or ""
end

local function quote(text)
  return (text:gsub("[^%w_.~-]", function(byte) return ("%%%02X"):format(byte:byte()) end))
end

function envoy_on_request(handle)
  local is_infer = handle:headers():get(":path") == INFER
  local about = handle:streamInfo():dynamicMetadata():get(ABOUT)
  local is_unpacked = about and about["is_unpacked"]
  if not is_infer and not is_unpacked then
    return
  end
  local body = handle:body()
  if is_unpacked then
    if not is_whole(handle, body) then
      fail(handle, INVALID_ARGUMENT, "the compressed message is damaged, or was compressed to less than a hundredth")
      return
    end
    -- A frame again; the bridge removes its flag and length without reading them.
    body:setBytes(("\0"):rep(HEAD) .. body:getBytes(0, body:length()))
  end
  if not is_infer then
    return
  end
  local name, version = find_model(body)
  if not name then
    fail(handle, INVALID_ARGUMENT, "the message is not a valid ModelInferRequest")
  elseif name == "" then
    fail(handle, INVALID_ARGUMENT, "model_name is empty")
  else
    -- Handle objects from before the body's arrival are no longer valid.
    handle:headers():replace(":path",
      "/predictions/" .. quote(name) .. (version ~= "" and "/" .. quote(version) or ""))
    handle:clearRouteCache()
  end
end

function envoy_on_response(handle)
  local headers = handle:headers()
  local status, message = headers:get("$GRPC_STATUS_HEADER"), headers:get("$GRPC_MESSAGE_HEADER")
  if not status then
    return
  end
  headers:remove("$GRPC_STATUS_HEADER")
  headers:remove("$GRPC_MESSAGE_HEADER")
  if headers:get("grpc-status") then
    headers:replace("grpc-status", status)
    headers:replace("grpc-message", message or "")
    return
  end
  local trailers = handle:trailers()
  if trailers then
    trailers:replace("grpc-status", status)
    trailers:replace("grpc-message", message or "")
  end
end
