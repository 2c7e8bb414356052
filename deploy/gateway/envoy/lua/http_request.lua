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

-- Whatever looks like a delimiter counts, wherever it stands.
local function note_parts(fields, body, boundary)
  local length, delimiter = body:length(), "--" .. boundary
  for start = 0, length - 1, PIECE do
    local piece = body:getBytes(start, math.min(PIECE + HEAD, length - start))
    local found, last = piece:find(delimiter, 1, true)
    while found and found <= PIECE do
      local head = piece:sub(last + 1, last + HEAD):match("^\r?(\n.-)\n\r?\n")
      -- multipart/mixed has parts within a part, all of its name.
      local is_plain = head and not head:lower():find("multipart/mixed", 1, true)
      local name = is_plain and head:match('[;%s][Nn][Aa][Mm][Ee]%s*=%s*"?([^";\r\n]*)')
      local status = piece:sub(last + 1, last + 2) ~= "--" and note(fields, name)
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
  if boundary then
    local charset = lower:match(";%s*charset%s*=[^;]*") or ""
    headers:replace("content-type", 'multipart/form-data; boundary="' .. boundary .. '"' .. charset)
  end
  return boundary
end

local function refused(handle)
  local headers, fields = handle:headers(), {[0] = 0}
  local kind, path = headers:get("content-type") or "", headers:get(":path")
  local lower, query = kind:lower(), path:match("%?(.*)")
  local is_form, is_multipart = lower:find("^application/x%-www%-form%-urlencoded"), lower:find("^multipart/form%-data")
  local boundary = is_multipart and boundary_of(headers, kind)
  local body = (is_form or boundary) and handle:body()
  local length = body and body:length() or 0
  return #path > PATH_BYTES and "431" or is_multipart and not boundary and "400"
    or is_form and length > FORM_BYTES and "413" or query and note_pairs(fields, query, "&;")
    or length > 0 and (boundary and note_parts(fields, body, boundary)
      or is_form and note_pairs(fields, body:getBytes(0, length), "&"))
end

function envoy_on_request(handle)
  local status = refused(handle)
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
