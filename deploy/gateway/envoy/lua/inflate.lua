-- Envoy inflates gzip alone: what is deflated (RFC 9110: zlib's form; some send the bare stream) gets a head of gzip in the
-- place of zlib's. Its end has no sum of gzip's kind, which nobody misses: the stream itself says where it ends.

-- Ten bytes: magic, deflate, no flags, no time, unknown system.
local GZIP_HEAD = "\31\139\8\0\0\0\0\0\0\255"

function envoy_on_request(handle)
  local headers = handle:headers()
  local encoding = headers:get("content-encoding")
  if not encoding or encoding:lower() ~= "deflate" then
    return
  end
  headers:replace("content-encoding", "gzip")
  handle:streamInfo():dynamicMetadata():set("gateway", "is_resized", true)
  local is_first = true
  for chunk in handle:bodyChunks() do
    local length = chunk:length()
    if is_first and length > 0 then
      is_first = false
      local bytes = chunk:getBytes(0, length)
      local a, b = bytes:byte(1, 2)
      -- zlib's head: method 8 in the low half, and the two bytes a multiple of 31.
      local is_zlib = b and a % 16 == 8 and (a * 256 + b) % 31 == 0
      chunk:setBytes(GZIP_HEAD .. (is_zlib and bytes:sub(3) or bytes))
    end
  end
end
