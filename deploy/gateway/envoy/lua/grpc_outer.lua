-- gRPC, in front of the bridge: finds the model in a ModelInferRequest and makes a path of it, and gives answers the status
-- that their X-Grpc-Status names.

local ABOUT = "gateway"
local INFER = "/inference.GRPCInferenceService/ModelInfer"
local INVALID_ARGUMENT = "3"
-- Bytes of a frame's head: one flag, and the length of the message in four.
local HEAD = 5
-- No name of a model or version is longer (torchserve_client.names).
local NAME_BYTES = 1024
local function fail(handle, status, message)
  handle:respond({[":status"] = "200", ["content-type"] = "application/grpc", ["grpc-status"] = status,
    ["grpc-message"] = message}, "")
end

-- Bytes at the start of a message, and fields, in which its names must stand: Triton's clients write them first, and a
-- loop over all of a large one would hold up everything else on this thread.
local PREFIX_BYTES, FIELDS = 65536, 1000

-- Reads a varint at a place, 1 being the first: its value and the place behind it, or nil.
local function varint(bytes, at)
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

-- Finds fields 1 and 2, model_name and model_version; every other field is skipped by its length.
local function model_of(body)
  local length = body:length() - HEAD
  local bytes = length > 0 and body:getBytes(HEAD, math.min(length, PREFIX_BYTES)) or ""
  local at, found = 1, {}
  for _ = 1, FIELDS do
    if at > #bytes then
      break
    end
    local key, size
    key, at = varint(bytes, at)
    if not key then
      return nil
    end
    local field, wire = math.floor(key / 8), key % 8
    if wire == 0 then
      size, at = varint(bytes, at)
      size = size and 0
    elseif wire == 1 then
      size = 8
    elseif wire == 2 then
      size, at = varint(bytes, at)
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

local function quoted(text)
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
    -- A frame again, whose flag and length the bridge takes away unread.
    body:setBytes(("\0"):rep(HEAD) .. body:getBytes(0, body:length()))
  end
  if not is_infer then
    return
  end
  local name, version = model_of(body)
  if not name then
    fail(handle, INVALID_ARGUMENT, "the message is no ModelInferRequest, or was compressed to less than a hundredth")
  elseif name == "" then
    fail(handle, INVALID_ARGUMENT, "model_name is empty")
  else
    -- What was taken of the handle before the body came holds no more.
    handle:headers():replace(":path",
      "/predictions/" .. quoted(name) .. (version ~= "" and "/" .. quoted(version) or ""))
    handle:clearRouteCache()
  end
end

function envoy_on_response(handle)
  local headers = handle:headers()
  local status, message = headers:get("x-grpc-status"), headers:get("x-grpc-message")
  if not status then
    return
  end
  headers:remove("x-grpc-status")
  headers:remove("x-grpc-message")
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
