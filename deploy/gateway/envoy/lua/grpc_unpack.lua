-- gRPC, before all filters that read the message: requires one complete message, and removes the frame of a compressed
-- message for the decompressor. Below sums.lua; a header of this script defines COMPRESSED_BYTES.

local ABOUT = "gateway"
local INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED =
  "$INVALID_ARGUMENT", "$RESOURCE_EXHAUSTED", "$UNIMPLEMENTED"
-- Bytes of a frame's header: one flag, and four bytes for the length of the message.
local HEAD = 5
local SERVICE, HEALTH = "^/" .. ("$SERVICE"):gsub("%.", "%%.") .. "/(%w+)$", "^/grpc%.health%.v1%.Health/(Check)$"
local function fail(handle, status, message)
  handle:respond({[":status"] = "200", ["content-type"] = "application/grpc", ["grpc-status"] = status,
    ["grpc-message"] = message}, "")
end

local function unpack_message(handle, body, length)
  local encoding = handle:headers():get("grpc-encoding")
  if encoding ~= "gzip" and encoding ~= "deflate" then
    fail(handle, UNIMPLEMENTED, "this compression is not supported: gzip and deflate are")
  elseif length > COMPRESSED_BYTES then
    fail(handle, RESOURCE_EXHAUSTED, "a compressed message may have " .. COMPRESSED_BYTES .. " bytes")
  elseif length >= HEAD + END_BYTES then
    local bytes, is_zlib = body:getBytes(HEAD, length - HEAD), encoding == "deflate"
    keep_sum(handle, bytes:sub(-END_BYTES), is_zlib)
    body:setBytes(is_zlib and GZIP_HEAD .. bytes:sub(ZLIB_HEAD_BYTES + 1) or bytes)
    local headers = handle:headers()
    headers:remove("grpc-encoding")
    headers:replace("content-encoding", "gzip")
    handle:streamInfo():dynamicMetadata():set(ABOUT, "is_unpacked", true)
  else
    fail(handle, INVALID_ARGUMENT, "the compressed message is empty or cut short")
  end
end

function envoy_on_request(handle)
  local headers = handle:headers()
  local kind = headers:get("content-type") or ""
  if not kind:find("^application/grpc") or kind:find("^application/grpc%-web") then
    handle:respond({[":status"] = "415"}, "")
    return
  end
  local path = headers:get(":path") or ""
  local method = path:match(SERVICE) or path:match(HEALTH)
  if not method then
    fail(handle, UNIMPLEMENTED, "only $SERVICE is served here, and Check of grpc.health.v1.Health")
    return
  end
  if method == "ModelStreamInfer" then
    -- Its client keeps sending: there is no complete message to wait for.
    fail(handle, UNIMPLEMENTED, "ModelStreamInfer is not supported: call ModelInfer")
    return
  end
  local body = handle:body()
  local length = body and body:length() or 0
  if length < HEAD then
    fail(handle, INVALID_ARGUMENT, "the request has no message")
    return
  end
  local flag, a, b, c, d = body:getBytes(0, HEAD):byte(1, HEAD)
  if HEAD + ((a * 256 + b) * 256 + c) * 256 + d ~= length then
    fail(handle, INVALID_ARGUMENT, "the request must be one message, whole")
  elseif flag ~= 0 then
    unpack_message(handle, body, length)
  end
end
