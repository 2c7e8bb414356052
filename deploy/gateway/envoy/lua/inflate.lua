-- Before the decompressor. Envoy inflates only gzip: a deflate body (RFC 9110: zlib's format; some clients send the
-- bare stream) gets a gzip header in place of zlib's header. It needs no gzip checksum, since the stream marks its own
-- end. The last four bytes of a gzip body, its inflated length, are kept: Envoy forwards the valid part of a damaged
-- body, and http_request.lua refuses it.

local ABOUT = "gateway"
-- Ten bytes: magic, deflate, no flags, no time, unknown system.
local GZIP_HEAD = "\31\139\8\0\0\0\0\0\0\255"

local function convert_to_gzip(chunk, length)
  local bytes = chunk:getBytes(0, length)
  local a, b = bytes:byte(1, 2)
  -- zlib's header: method 8 in the low half, and the two bytes a multiple of 31.
  local is_zlib = b and a % 16 == 8 and (a * 256 + b) % 31 == 0
  chunk:setBytes(GZIP_HEAD .. (is_zlib and bytes:sub(3) or bytes))
end

function envoy_on_request(handle)
  local headers = handle:headers()
  -- x-gzip is gzip (RFC 9110, 8.4.1.3), and identity is nothing.
  local encoding = (headers:get("content-encoding") or ""):lower():gsub("[%w-]+", {identity = ""})
    :gsub("[%s,]", ""):gsub("^x%-", "")
  local is_deflate = encoding == "deflate"
  if encoding == "" then
    return
  elseif not is_deflate and encoding ~= "gzip" then
    -- Envoy would inflate the last of several codings.
    handle:respond({[":status"] = "415"}, "")
    return
  end
  headers:replace("content-encoding", "gzip")
  handle:streamInfo():dynamicMetadata():set(ABOUT, "is_inflated", true)
  -- The decompressor removes Content-Encoding, so this header makes the matcher run http_request.lua.
  headers:replace("x-inflated", "1")
  local is_first, last = true, ""
  for chunk in handle:bodyChunks() do
    local length = chunk:length()
    if length > 0 and is_deflate and is_first then
      convert_to_gzip(chunk, length)
    elseif length > 0 and not is_deflate then
      local size = math.min(length, 4)
      last = (last .. chunk:getBytes(length - size, size)):sub(-4)
    end
    is_first = is_first and length == 0
  end
  if #last == 4 then
    local a, b, c, d = last:byte(1, 4)
    handle:streamInfo():dynamicMetadata():set(ABOUT, "inflated_bytes", a + b * 256 + c * 65536 + d * 16777216)
  end
end
