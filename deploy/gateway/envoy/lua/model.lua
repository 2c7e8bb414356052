-- Finds the model of a request to the APIs of embedding servers: the text of "model" in the JSON object of the body.
-- The name is written to metadata, which selects the route, and never to a header. Only brackets, braces and quotes are
-- examined, one piece of the body at a time: a parsed tree would take ninety times the size of the body. The worker
-- checks the JSON and all other values.

local ABOUT = "gateway.api"
-- Bytes of the body that are copied at once, and bytes that may contain "model" and its text: a name of 1,024 bytes has
-- six characters for each escaped byte.
local PIECE, NAME = 65536, 8192
-- Brackets and quotes that are examined, about 0.2 s of this thread; and members of the object.
local MARKS, MEMBERS = 1000000, 1000

-- No model has this name: names contain no control characters.
local UNKNOWN = "\n"

-- Encode a code point in UTF-8.
local function utf8(code)
  if code < 0x80 then
    return string.char(code)
  elseif code < 0x800 then
    return string.char(0xC0 + math.floor(code / 64), 0x80 + code % 64)
  end
  local tail = string.char(0x80 + math.floor(code / 64) % 64, 0x80 + code % 64)
  return (code < 0x10000 and string.char(0xE0 + math.floor(code / 4096))
    or string.char(0xF0 + math.floor(code / 262144), 0x80 + math.floor(code / 4096) % 64)) .. tail
end

-- Read the text of a JSON string after its first quote; nil without an end.
local function read_text(json)
  -- Escaped backslashes and quotes first: then the next quote is the last, and each other backslash begins an escape.
  local text = json:gsub("\\\\", "\\u005c"):gsub('\\"', "\\u0022"):gsub("\\/", "/"):match('^([^"]*)"')
  return text and text:gsub("\\u([dD][89abAB]%x%x)\\u([dD][c-fC-F]%x%x)", function(high, low)
    return utf8((tonumber(high, 16) - 0xD800) * 1024 + tonumber(low, 16) - 0xDC00 + 0x10000)
  end):gsub("\\u(%x%x%x%x)", function(code) return utf8(tonumber(code, 16)) end)
end

-- Return a name that a model may have; invalid UTF-8, a backslash or a control character makes it UNKNOWN.
local function check_name(text)
  local rest = text:gsub("[\194-\223][\128-\191]", ""):gsub("[\224-\239][\128-\191][\128-\191]", "")
    :gsub("[\240-\244][\128-\191][\128-\191][\128-\191]", "")
  local is_name = text ~= "" and not rest:find("[%c\\\128-\255]") and not text:find("\237[\160-\191]")
  return is_name and text or UNKNOWN
end

local function find_model(body)
  local length, start, depth, members, in_text = body:length(), 0, 0, 0, false
  local piece, at, reach = "", 1, 0
  for _ = 1, MARKS do
    if at > reach then
      start = start + at - 1
      if start >= length then
        return nil
      end
      piece, at = body:getBytes(start, math.min(PIECE, length - start)), 1
      reach = start + #piece < length and #piece - NAME or #piece
    end
    local found = piece:find(in_text and '["\\]' or '["{}%[%]]', at)
    if not found or found > reach then
      at = reach + 1
    else
      local mark = piece:byte(found)
      at = found + 1
      if mark == 92 then -- a backslash: the next character is text
        at = found + 2
      elseif mark == 34 then
        if not in_text and depth == 1 then
          -- A key may be written with escapes; then it has no quote within.
          local key, quote = piece:match('^"([m\\][^"]*)"%s*:%s*"()', found)
          local name = key and read_text(key .. '"') == "model" and read_text(piece:sub(quote, quote + NAME - 1))
          members = members + 1
          if name or members > MEMBERS then
            return name and check_name(name)
          end
        end
        in_text = not in_text
      else
        depth = depth + ((mark == 123 or mark == 91) and 1 or -1)
        if depth < 1 or (depth == 1 and mark == 91) then
          return nil
        end
      end
    end
  end
end

function envoy_on_request(handle)
  if handle:headers():get(":method") ~= "POST" then
    return
  end
  local body = handle:body()
  local name = body and find_model(body)
  handle:streamInfo():dynamicMetadata():set(ABOUT, "model", name or "")
  handle:clearRouteCache()
  -- Without a name, the only model of a task has a route.
  if not name and not handle:metadata():get("form") then
    handle:respond({[":status"] = "400"}, "")
  end
end
