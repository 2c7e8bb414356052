-- Before the decompressor; below sums.lua. Envoy inflates only gzip: a deflate body, which has zlib's format (RFC 9110), gets
-- gzip's header in place of zlib's. http_request.lua rejects a body whose header, end or sum is not valid.

local ABOUT = "gateway"

-- zlib's header: method 8 in the low half, a window of at most 32 KiB, no dictionary, and the two bytes a multiple of 31.
local function is_zlib_head(head)
  local a, b = head:byte(1, 2)
  return b ~= nil and a % 16 == 8 and a < 128 and b % 64 < 32 and (a * 256 + b) % 31 == 0
end

function envoy_on_request(handle)
  local headers = handle:headers()
  -- x-gzip is gzip (RFC 9110, 8.4.1.3), and identity is nothing.
  local encoding = (headers:get("content-encoding") or ""):lower():gsub("[%w-]+", {identity = ""})
    :gsub("[%s,]", ""):gsub("^x%-", "")
  local is_zlib = encoding == "deflate"
  if encoding == "" then
    return
  elseif not is_zlib and encoding ~= "gzip" then
    -- Envoy would inflate the last of several codings.
    handle:respond({[":status"] = "415"}, "")
    return
  end
  headers:replace("content-encoding", "gzip")
  handle:streamInfo():dynamicMetadata():set(ABOUT, "is_inflated", true)
  -- The decompressor removes Content-Encoding, so this header makes the matcher run http_request.lua.
  headers:replace("x-inflated", "1")
  local head, last = "", ""
  for chunk in handle:bodyChunks() do
    local length = chunk:length()
    if length > 0 then
      local size = math.min(length, END_BYTES)
      last = (last .. chunk:getBytes(length - size, size)):sub(-END_BYTES)
    end
    if length > 0 and is_zlib and #head < ZLIB_HEAD_BYTES then
      local bytes, first = chunk:getBytes(0, length), head == ""
      local size = ZLIB_HEAD_BYTES - #head
      head = head .. bytes:sub(1, size)
      chunk:setBytes((first and GZIP_HEAD or "") .. bytes:sub(size + 1))
    end
  end
  if not is_zlib or is_zlib_head(head) then
    keep_sum(handle, last, is_zlib)
  end
end
