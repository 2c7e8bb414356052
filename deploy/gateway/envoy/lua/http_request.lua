-- For forms, long paths, queries with several fields and inflated bodies (the matcher in listener.yaml skips all other
-- requests). It bounds forms, rejects duplicate field names, of which TorchServe would drop the first, and rejects a
-- compressed body whose header, end or sum is not valid. Below sums.lua; a header of this script defines FORM_BYTES and
-- FORM_PARTS.

local ABOUT = "gateway"
-- Bytes of a body that are searched at once, and bytes of a part's header.
local PIECE, HEAD = 65536, $PART_HEAD_BYTES

-- Record a field's name; return the status of a rejection. The count of fields is at key 0, which is not a name.
local function count_field(fields, name)
  fields[0] = fields[0] + 1
  local status = fields[0] > FORM_PARTS and "413" or (not name or fields[name]) and "400" or nil
  fields[name or ""] = true
  return status
end

local function count_pairs(fields, text, separators)
  local status
  for name in text:gmatch("([^=" .. separators .. "]+)[^" .. separators .. "]*") do
    name = name:gsub("+", " "):gsub("%%(%x%x)", function(code) return string.char(tonumber(code, 16)) end)
    status = status or count_field(fields, name)
  end
  return status
end

-- A delimiter is at the beginning of any line; the end of the form looks like a delimiter, too.
local function count_parts(fields, body, boundary)
  local length, delimiter = body:length(), "\n--" .. boundary
  for start = -1, length - 1, PIECE do
    local from = math.max(start, 0)
    local piece = (start < 0 and "\n" or "") .. body:getBytes(from, math.min(PIECE + HEAD, length - from))
    local found, last = piece:find(delimiter, 1, true)
    while found and found <= PIECE do
      local head = piece:sub(last + 1, last + HEAD):match("^\r?(\n.-)\n\r?\n") or ""
      local name = head:match('[;%s][Nn][Aa][Mm][Ee]%s*=%s*"?([^";\r\n]*)')
      -- multipart/mixed nests parts with the name of their outer part.
      local is_mixed = head:lower():find("multipart/mixed", 1, true)
      local status = piece:sub(last + 1, last + 2) ~= "--" and count_field(fields, not is_mixed and name)
      if status then
        return status
      end
      found, last = piece:find(delimiter, last + 1, true)
    end
  end
end

-- Read the boundary, and rewrite the content type so that TorchServe reads the same boundary.
local function read_boundary(headers, kind)
  local lower = kind:lower()
  local _, last = lower:find(";%s*boundary%s*=%s*")
  local boundary = last and (kind:match('^"([^"\\;]+)"', last + 1) or kind:match('^[^%s";,]+', last + 1))
  if boundary and #boundary <= $BOUNDARY_CHARACTERS then
    local charset = lower:match(';%s*charset%s*=%s*"?([^%s";]+)')
    headers:replace("content-type", 'multipart/form-data; boundary="' .. boundary .. '"' ..
      (charset and "; charset=" .. charset or ""))
    return boundary
  end
end

function envoy_on_request(handle)
  local headers, fields = handle:headers(), {[0] = 0}
  local kind, path = headers:get("content-type") or "", headers:get(":path")
  local query, status = path:match("%?(.*)"), nil
  if kind:lower():find("^multipart/form%-data") then
    local boundary = read_boundary(headers, kind)
    local body = boundary and handle:body()
    status = not boundary and "415" or body and count_parts(fields, body, boundary)
  elseif kind:lower():find("^application/x%-www%-form%-urlencoded") then
    local body = handle:body()
    local length = body and body:length() or 0
    status = length > FORM_BYTES and "413" or length > 0 and count_pairs(fields, body:getBytes(0, length), "&")
  end
  status = #path > $PATH_BYTES and "431" or status or query and count_pairs(fields, query, "&;")
  if status then
    handle:streamInfo():dynamicMetadata():set(ABOUT, "form", status)
    handle:respond({[":status"] = status}, "")
    return
  end
  local noted = handle:streamInfo():dynamicMetadata():get(ABOUT) or {}
  if noted["is_inflated"] then
    local body = handle:body()
    local length = body and body:length() or 0
    if length == 0 or not is_whole(handle, body) then
      handle:respond({[":status"] = "400"}, "")
      return
    end
    handle:headers():replace("content-length", tostring(length))
  end
end
