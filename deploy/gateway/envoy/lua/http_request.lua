-- Of forms, of long paths, of queries of several fields and of bodies that were inflated (listener.yaml's matcher asks for
-- nothing else): forms are bounded, two fields of one name are refused, of which TorchServe would drop the first, and so is
-- a body that is not what its head or its end says. FORM_BYTES and FORM_PARTS are set in front of this file.

local ABOUT = "gateway"
-- TorchServe's HTTP library takes a first line of 4096; a rewritten path may be longer by a model's name.
local PATH_BYTES = 3072
-- Bytes that are searched at once, and of a part's head.
local PIECE, HEAD = 65536, 4096

-- Notes a field's name; returns the status that refuses it. The number of fields stands at 0, which no name is.
local function note(fields, name)
  fields[0] = fields[0] + 1
  local status = fields[0] > FORM_PARTS and "413" or (not name or fields[name]) and "400" or nil
  fields[name or ""] = true
  return status
end

local function note_pairs(fields, text, separators)
  local status
  for name in text:gmatch("([^=" .. separators .. "]+)[^" .. separators .. "]*") do
    name = name:gsub("+", " "):gsub("%%(%x%x)", function(code) return string.char(tonumber(code, 16)) end)
    status = status or note(fields, name)
  end
  return status
end

-- A delimiter stands at the beginning of a line, wherever that is; so does what ends the form, and looks like one.
local function note_parts(fields, body, boundary)
  local length, delimiter = body:length(), "\n--" .. boundary
  for start = -1, length - 1, PIECE do
    local from = math.max(start, 0)
    local piece = (start < 0 and "\n" or "") .. body:getBytes(from, math.min(PIECE + HEAD, length - from))
    local found, last = piece:find(delimiter, 1, true)
    while found and found <= PIECE do
      local head = piece:sub(last + 1, last + HEAD):match("^\r?(\n.-)\n\r?\n") or ""
      local name = head:match('[;%s][Nn][Aa][Mm][Ee]%s*=%s*"?([^";\r\n]*)')
      -- multipart/mixed has parts within a part, all of its name.
      local is_mixed = head:lower():find("multipart/mixed", 1, true)
      local status = piece:sub(last + 1, last + 2) ~= "--" and note(fields, not is_mixed and name)
      if status then
        return status
      end
      found, last = piece:find(delimiter, last + 1, true)
    end
  end
end

-- Reads the boundary, and writes the content type so that TorchServe reads the same one.
local function boundary_of(headers, kind)
  local lower = kind:lower()
  local _, last = lower:find(";%s*boundary%s*=%s*")
  local boundary = last and (kind:match('^"([^"\\;]+)"', last + 1) or kind:match('^[^%s";,]+', last + 1))
  if boundary and #boundary <= 70 then
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
    local boundary = boundary_of(headers, kind)
    local body = boundary and handle:body()
    status = not boundary and "400" or body and note_parts(fields, body, boundary)
  elseif kind:lower():find("^application/x%-www%-form%-urlencoded") then
    local body = handle:body()
    local length = body and body:length() or 0
    status = length > FORM_BYTES and "413" or length > 0 and note_pairs(fields, body:getBytes(0, length), "&")
  end
  status = #path > PATH_BYTES and "431" or status or query and note_pairs(fields, query, "&;")
  if status then
    handle:streamInfo():dynamicMetadata():set(ABOUT, "form", status)
    handle:respond({[":status"] = status}, "")
    return
  end
  local noted = handle:streamInfo():dynamicMetadata():get(ABOUT) or {}
  if noted["is_inflated"] then
    local body = handle:body()
    local length = body and body:length() or 0
    -- Modulo 2^32 in gzip's own count; no body is as long.
    if length == 0 or (noted["inflated_bytes"] or length) ~= length then
      handle:respond({[":status"] = "400"}, "")
      return
    end
    handle:headers():replace("content-length", tostring(length))
  end
end
